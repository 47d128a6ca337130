"""Self-supervised questions about pictures: rotation, whether two views are of one picture, the position of a piece, a missing
patch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from mmrl import Case, Overlay, Prompt, Task, UserError, user_message
from mmrl.api.tasks import overlays
from mmrl.api.tasks.image_sources import ImageFolder, ImageSource, PhotographCrops, chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl.api.tasks.overlays import OverlaySource
from mmrl_ssl import verifiers, words
from mmrl_ssl.augment import STRENGTHS, recoloured, view

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST = 28
"""Minimal side of a picture or a piece in pixels: SSL4RL's minimum, and the size of one image token of most vision models."""
UPRIGHT = ("astronaut", "chelsea", "china", "coffee", "flower", "motorcycle_left", "rocket")
"""Photographs with a top and a bottom."""
QUADRANTS = ("top-left", "top-right", "bottom-left", "bottom-right")


class Asked(NamedTuple):
    """One question."""

    images: list[Image]
    text: str
    answer: str
    meta: dict[str, Any]


@dataclass(kw_only=True, eq=False)
class Question(Task):
    """Base class of the four questions. The run's seed changes nothing: an id always means the same item."""

    path: str | None = None
    """A folder of images, with or without subfolders; by default, square pieces of the installed photographs."""
    size: int = 112
    """The picture's longer side in pixels; larger images of a folder are reduced to it, and 0 leaves them unchanged."""
    style: Literal["plain", "tags", "ssl4rl"] = "plain"
    """The requested form of the answer. plain: the answer alone. tags: a thought and the answer, each in its tag. ssl4rl: the
    prompt of SSL4RL."""
    photographs: Sequence[str] = ()
    """Photographs to use, such as ["china", "coffee"]; by default all that suit the question."""
    train: int = 4096
    """Items of photographs to train on."""
    test: int = 512
    """Items of photographs to test on."""
    each: int = 1
    """Items of each image of a folder."""
    seed: int = 0
    """Seed of the items, and of the splits of a folder's images."""

    suited: ClassVar[tuple[str, ...]] = ()
    """The photographs that suit the question; none means all."""
    grown: ClassVar[float] = 1.0
    """Side of the piece of a photograph, as a multiple of `size`."""

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("size", self.size, 0 if self.path is not None else LEAST, 4096),
            ("train", self.train, 1, 10**7),
            ("test", self.test, 1, 10**7),
            ("each", self.each, 1, 10**4),
            ("seed", self.seed, -(2**63), 2**63),
        ):
            check_integer(name, value, low, high)
        if self.path is not None:
            check_type("path", self.path, str)
        if not isinstance(self.photographs, list | tuple):
            raise UserError(f'photographs = {self.photographs!r:.200} must be a list, such as ["china", "coffee"]')
        check_choice("style", self.style, ("plain", "tags", "ssl4rl"))
        self.check()
        self.source: ImageSource = (
            ImageFolder(self.path, self.size, self.each, self.seed)
            if self.path is not None
            else PhotographCrops(
                round(self.size * self.grown),
                {"train": self.train, "test": self.test},
                self.seed,
                self.photographs or self.suited,
            )
        )

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.source.ids)
        return LazyPrompts(range(len(self.source.ids[split])), lambda index: self._pose(split, index))

    def gold(self, prompt: Prompt) -> str:
        if self.style == "plain":
            return str(prompt.answer)
        gap = " " if self.style == "ssl4rl" else "\n"
        return f"<think>Looking closely, it is {prompt.answer}.</think>{gap}<answer>{prompt.answer}</answer>"

    def overlays(self, prompt: Prompt, completion: str) -> list[Overlay]:
        """The positions of the answer and of the completion's choice, if the question is about positions."""
        said, _ = verifiers.given(Case(completion=completion, answer=prompt.answer, meta=prompt.meta))
        choice = verifiers.normalise(said or "")
        chosen = [] if choice not in prompt.meta["choices"] else self.place(prompt, choice, "said")
        return [*self.place(prompt, str(prompt.answer), "true"), *chosen]

    def place(self, prompt: Prompt, choice: str, of: OverlaySource) -> list[Overlay]:
        """The position of one of the choices."""
        return []

    def check(self) -> None:
        """Raise UserError for invalid options."""

    def pose(self, picture: Image, draw: random.Random, split: str, index: int) -> Asked:
        raise NotImplementedError

    def worded(self, question: str, what: str) -> str:
        """The question with instructions for the answer. what: "number", "word"."""
        return question + (words.THINK if self.style == "tags" else f" Answer with the {what} alone.")

    def _pose(self, split: str, index: int) -> Prompt:
        id = self.source.ids[split][index]
        picture = self.source.open(split, index)
        if min(picture.size) < LEAST:
            source = f" from {self.path}" if self.path else ""
            raise UserError(
                f"image {id} of {picture.width} x {picture.height} has a side below {LEAST} pixels: remove it{source}"
            )
        try:
            asked = self.pose(picture, chance(self.seed, "item", id), split, index)
        except UserError as error:
            raise UserError(f"image {id}: {error}") from error
        return Prompt(
            id=id,
            messages=[user_message(asked.text, *asked.images)],
            answer=asked.answer,
            meta={"tags": self.style != "plain", **asked.meta},
        )


@dataclass(kw_only=True, eq=False)
class Rotation(Question):
    """By how many degrees a picture was rotated, counter-clockwise."""

    angles: Sequence[int] = (0, 90, 180, 270)
    """Degrees from 0 to 359, counter-clockwise. With others than these four, the middle of the rotated picture is shown."""
    pictures: Literal[1, 2] = 1
    """1: only the rotated picture, which must have a recognisable top. 2: the original picture, then the rotated one."""

    suited = UPRIGHT

    def check(self) -> None:
        check_choice("pictures", self.pictures, (1, 2))
        listed = list(self.angles) if isinstance(self.angles, Sequence) and not isinstance(self.angles, str) else []
        if len(listed) < 2 or len(set(listed)) < len(listed) or any(type(a) is not int or not 0 <= a < 360 for a in listed):
            raise UserError(f"angles = {self.angles!r:.200} must be a list of two or more whole numbers from 0 to 359, each once")
        if self.style == "ssl4rl":
            step = 360 // len(listed)
            if self.pictures != 2 or listed != list(range(0, 360, step)):
                raise UserError(
                    'style = "ssl4rl" is for pictures = 2 and angles in equal steps from 0, such as [0, 90, 180, 270]'
                )
        self.oblique = any(angle % 90 for angle in listed)
        self.grown = 2**0.5 if self.oblique else 1.0  # type: ignore[misc]  # room for the corners that are rotated out of the picture

    def pose(self, picture: Image, draw: random.Random, split: str, index: int) -> Asked:
        if self.style != "ssl4rl" or self.oblique:
            picture = square(picture)  # otherwise the shape would reveal a quarter turn
        angle = draw.choice(list(self.angles))
        before, after = (turned(picture, a, self.oblique) for a in (0, angle))
        listed = ", ".join(map(str, self.angles[:-1])) + f" or {self.angles[-1]}"
        if self.style == "ssl4rl":
            step = 360 // len(self.angles)
            text = words.ROTATION.format(step, 2 * step, 360 - step)
        elif self.pictures == 2:
            text = self.worded(
                f"The second picture is the first, turned counter-clockwise by {listed} degrees. By how many?", "number"
            )
        else:
            text = self.worded(f"This picture was turned counter-clockwise by {listed} degrees. By how many?", "number")
        images = [before, after] if self.pictures == 2 else [after]
        return Asked(images, text, str(angle), {"choices": [str(a) for a in self.angles]})


@dataclass(kw_only=True, eq=False)
class Contrastive(Question):
    """Whether two changed views are of the same picture."""

    strength: Literal["mild", "simclr", "strong"] = "mild"
    """Strength of the augmentations: crops, colours, blur, mirroring. simclr and strong are SSL4RL's."""

    def check(self) -> None:
        check_choice("strength", self.strength, tuple(STRENGTHS))

    def pose(self, picture: Image, draw: random.Random, split: str, index: int) -> Asked:
        same = draw.random() < 0.5
        other = picture if same else self._another(draw, split, index)
        size = self.size or 224
        images = [view(p, STRENGTHS[self.strength], size, draw) for p in (picture, other)]
        if self.style == "ssl4rl":
            return Asked(images, words.CONTRASTIVE, "positive" if same else "negative", {"choices": ["positive", "negative"]})
        question = (
            "Each was cropped from a picture, and perhaps mirrored and recoloured. Was it the same picture or different ones?"
        )
        return Asked(images, self.worded(question, "word"), "same" if same else "different", {"choices": ["same", "different"]})

    def _another(self, draw: random.Random, split: str, index: int) -> Image:
        """A picture of another original of the same split."""
        count, name = len(self.source.ids[split]), self.source.name(split, index)
        start = draw.randrange(count)
        for other in (*range(start, count), *range(start)):
            if self.source.name(split, other) != name:
                return self.source.open(split, other)
        raise UserError(f"there is no other picture in {split} to compare it with: add images")


@dataclass(kw_only=True, eq=False)
class Position(Question):
    """From which quarter of a picture a piece of it is."""

    smallest: float = 0.2
    """Minimal side of a piece, as a share of the quarter's; never below 28 pixels."""
    largest: float = 0.8
    """Maximal side of a piece, as a share of the quarter's."""
    strength: Literal["none", "mild", "simclr", "strong"] = "none"
    """Strength of the changes of the piece's colours."""

    def check(self) -> None:
        check_choice("strength", self.strength, ("none", *STRENGTHS))
        if (
            not all(isinstance(v, int | float) and not isinstance(v, bool) for v in (self.smallest, self.largest))
            or not 0 < self.smallest <= self.largest <= 1
        ):
            raise UserError(
                f"smallest = {self.smallest!r:.60} and largest = {self.largest!r:.60} must be shares: "
                "0 < smallest <= largest <= 1"
            )
        if self.path is None and self.size // 2 * self.largest < LEAST:
            raise UserError(
                f"size = {self.size} leaves pieces below {LEAST} pixels: set size to {round(2 * LEAST / self.largest) + 2}"
            )

    def pose(self, picture: Image, draw: random.Random, split: str, index: int) -> Asked:
        row, column = draw.randrange(2), draw.randrange(2)
        half_width, half_height = picture.width // 2, picture.height // 2
        left, top = column * half_width, row * half_height
        width, height = (picture.width - left if column else half_width), (picture.height - top if row else half_height)
        sides = [(max(LEAST, int(side * self.smallest)), int(side * self.largest)) for side in (width, height)]
        if any(low > high for low, high in sides):
            raise UserError(f"{picture.width} x {picture.height} pixels are too few for pieces of {LEAST}: remove it")
        across, down = (draw.randint(low, high) for low, high in sides)
        x, y = left + draw.randint(0, width - across), top + draw.randint(0, height - down)
        piece = picture.crop((x, y, x + across, y + down))
        if self.strength != "none":
            piece = recoloured(piece, STRENGTHS[self.strength], draw)
        question = (
            "The second picture is a piece of the first. From which quarter: top-left, top-right, bottom-left or bottom-right?"
        )
        text = words.POSITION if self.style == "ssl4rl" else self.worded(question, "word")
        meta = {
            "choices": list(QUADRANTS),
            "boxes": [(x, y, x + across, y + down)],
            "difficulty": 1 - across * down / (width * height),
        }
        return Asked([picture, piece], text, QUADRANTS[2 * row + column], meta)

    def place(self, prompt: Prompt, choice: str, of: OverlaySource) -> list[Overlay]:
        """The piece itself for the ground truth, the quarter for a completion."""
        if of == "true":
            return [overlays.box_overlay(prompt.meta["boxes"][0], prompt.images[0].size, of)]
        down, right = divmod(QUADRANTS.index(choice), 2)
        return [Overlay(kind="box", coordinates=(right / 2, down / 2, (right + 1) / 2, (down + 1) / 2), source=of, label=choice)]


@dataclass(kw_only=True, eq=False)
class Masked(Question):
    """Which of several patches fills the hole in a picture."""

    choices: int = 4
    """Number of patches to choose from, 2 to 9."""
    hole: float = 0.25
    """The side of the hole, as a share of the picture's shorter side, from 0.1 to 0.4."""
    layout: Literal["picture", "patches"] = "picture"
    """The patches in a row below the picture, or each as a separate picture."""

    def check(self) -> None:
        check_integer("choices", self.choices, 2, 9)
        check_choice("layout", self.layout, ("picture", "patches"))
        if isinstance(self.hole, bool) or not isinstance(self.hole, int | float) or not 0.1 <= self.hole <= 0.4:
            raise UserError(f"hole = {self.hole!r:.60} must be a share from 0.1 to 0.4")
        if self.style == "ssl4rl":
            raise UserError('style = "ssl4rl" has no prompt for this question: choose plain or tags')

    def pose(self, picture: Image, draw: random.Random, split: str, index: int) -> Asked:
        from mmrl_ssl.patches import below, others, with_hole

        side = max(8, round(self.hole * min(picture.size)))
        x, y = draw.randint(0, picture.width - side), draw.randint(0, picture.height - side)
        box = (x, y, x + side, y + side)
        patches = [picture.crop(box), *others(picture, box, self.choices - 1, draw)]
        order = list(range(len(patches)))
        draw.shuffle(order)
        shown = with_hole(picture, box)
        if self.layout == "picture":
            images, boxes = below(shown, [patches[i] for i in order])
            what = "Which patch below, counted from the left,"
        else:
            images, boxes = [shown, *(patches[i] for i in order)], []
            what = "Which of the pictures that follow the first"
        choices = [str(i + 1) for i in range(len(patches))]
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        meta = {"choices": choices, "boxes": [box, *boxes], "difficulty": len(patches)}
        return Asked(images, self.worded(f"{what} fills the grey hole: {listed}?", "number"), str(order.index(0) + 1), meta)

    def place(self, prompt: Prompt, choice: str, of: OverlaySource) -> list[Overlay]:
        number, boxes = int(choice), prompt.meta["boxes"]
        if self.layout == "patches":
            return [Overlay(kind="box", coordinates=(0, 0, 1, 1), source=of, image=number)]
        return [overlays.box_overlay(boxes[number], prompt.images[0].size, of)]


def square(picture: Image) -> Image:
    """The middle of a picture."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))


def turned(picture: Image, angle: int, oblique: bool) -> Image:
    """The picture rotated counter-clockwise; if the angles are oblique, the middle of a square, without its corners."""
    from PIL import Image

    if angle % 90 == 0:
        quarter = (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270)
        picture = picture.transpose(quarter[angle // 90 - 1]) if angle else picture
    else:
        picture = picture.rotate(angle, Image.Resampling.BICUBIC)
    if not oblique:
        return picture
    side = int(picture.width / 2**0.5)
    start = (picture.width - side) // 2
    return picture.crop((start, start, start + side, start + side))

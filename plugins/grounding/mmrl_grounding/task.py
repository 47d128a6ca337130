"""Tasks on composed scenes: referring expressions, detection, counting, pointing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl import Case, Overlay, Prompt, Task, UserError, user_message
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split
from mmrl_grounding import asking, scenes, seen
from mmrl_grounding.coordinates import written
from mmrl_grounding.geometry import middle
from mmrl_grounding.scenes import Kind, Thing

ATTEMPTS = 100
"""Number of scenes that are drawn until one allows a question; one in a few doesn't."""


@dataclass(kw_only=True, eq=False)
class Grounded(Task):
    """Base class of all tasks of this plugin: style and coordinate format of answers."""

    style: str = "short"
    """The requested form of the answer: short, bare numbers; json, JSON and nothing else; tags, a thought and JSON in tags."""
    frame: str | None = None
    """Coordinate format of the answer, one of `mmrl.CoordinateFormat`; by default the policy's."""

    styles: ClassVar[tuple[str, ...]] = asking.STYLES

    def __post_init__(self) -> None:
        check_choice("style", self.style, self.styles)
        if self.frame is not None:
            check_choice("frame", self.frame, [f.value for f in CoordinateFormat])

    @property
    def answer_format(self) -> CoordinateFormat:
        return CoordinateFormat(self.frame) if self.frame else self.image_processing.coordinate_format

    def as_written(self, numbers: Sequence[float], size: tuple[int, int]) -> tuple[float, ...]:
        """Pixels of a picture of `size`, as an answer writes them."""
        return written(numbers, self.answer_format, size, self.image_processing.model_size(size))

    def truth_as_written(self, prompt: Prompt) -> Any:
        """The prompt's answer as a gold completion writes it: a box, a point in its middle, a number, a list of boxes."""
        size, asks = prompt.meta["size"], prompt.meta["asks"]
        if asks == "boxes":
            return [{**one, "bbox_2d": self.as_written(one["bbox_2d"], size)} for one in prompt.answer]
        if asks == "count":
            return prompt.answer
        if asks == "box":
            return self.as_written(prompt.answer, size)
        boxes = prompt.answer
        x1, y1, x2, y2 = boxes[0]["bbox_2d"] if isinstance(boxes[0], Mapping) else boxes  # of several any will do
        return self.as_written(middle(x1, y1, x2, y2), size)

    def gold(self, prompt: Prompt) -> str:
        said = asking.answer(self.style, prompt.meta["asks"], self.truth_as_written(prompt), self.answer_format)
        return said if self.style != "tags" else asking.thought(prompt.meta["thought"], said)

    def overlays(self, prompt: Prompt, completion: str) -> list[Overlay]:
        """The true boxes, and the boxes or the point in a completion."""
        case = self.case(prompt, completion)
        return [*seen.true_overlays(case), *seen.said_overlays(case)]

    def case(self, prompt: Prompt, completion: str) -> Case:
        """A completion of a prompt as verifiers get it."""
        size = prompt.meta["size"]
        return Case(
            completion=completion,
            answer=prompt.answer,
            meta=prompt.meta,
            image_sizes=(size,),
            model_sizes=(self.image_processing.model_size(size),),
            coordinate_format=self.image_processing.coordinate_format,
        )

    def asked(self, text: str, asks: str, size: tuple[int, int]) -> str:
        """A question with instructions for the answer."""
        coordinate_format = self.answer_format
        return asking.ask(
            text,
            self.style,
            asks,
            coordinate_format,
            self.image_processing.model_size(size) if coordinate_format is CoordinateFormat.MODEL_PIXELS else size,
        )

    def meta(self, asks: str, size: tuple[int, int], boxes: Sequence[Sequence[float]], **more: Any) -> dict[str, Any]:
        """The meta data of a prompt, for verifiers and display."""
        meta = {"style": self.style, "asks": asks, "size": size, "boxes": [tuple(box) for box in boxes], **more}
        return {**meta, "answer_frame": self.frame} if self.frame else meta


@dataclass(kw_only=True, eq=False)
class Scenes(Grounded):
    """Base class of the tasks on composed scenes. A subclass makes a question about a scene."""

    size: int = 112
    """Pixels of the picture's sides."""
    objects: int = 3
    """Maximum of objects in a scene; their number is drawn from 1 on, and is most of the difficulty."""
    similar: float = 0.3
    """Probability that an object shares colour, shape or both with the target, 0 to 1: the rest of the difficulty."""
    grid: int | None = None
    """Corners of boxes are multiples of this many pixels: by default a fourteenth of the size, which is learned soon; 1 for any
    position."""
    train: int = 2000
    """Scenes of the split `train`."""
    test: int = 200
    """Scenes of the split `test`."""
    warm: int = 500
    """Scenes of the split `warm`, for imitation before reinforcement learning."""
    seed: int = 0
    """Seed of the scenes. The run's seed doesn't change them, so that all runs are tested on the same ones."""

    splits = ("warm", "train", "test")
    asks: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("size", self.size, 32, 2048)
        check_integer("objects", self.objects, 1, 20)
        if self.grid is not None:
            check_integer("grid", self.grid, 1, self.size // 4)
        self._grid = self.grid or max(1, self.size // 14)
        for option in ("train", "test", "warm"):
            check_integer(option, getattr(self, option), 1, 10_000_000)
        check_integer("seed", self.seed, -(2**62), 2**62)
        if not isinstance(self.similar, int | float) or isinstance(self.similar, bool) or not 0 <= self.similar <= 1:
            raise UserError(f"similar = {self.similar!r} must be a number from 0 to 1")
        scenes.arrange(random.Random(0), [scenes.KINDS[0]] * self.objects, self.size, self._grid)

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        return LazyPrompts(range(getattr(self, split)), lambda number: self._pose(split, number))

    def question(
        self, draw: random.Random, things: list[Thing], wish: int
    ) -> tuple[str, Any, list[Thing], dict[str, Any]] | None:
        """(the question, the answer, the things that it is about, further meta); None if this scene allows none. wish: the number
        that `kinds` got, from 0 to `objects`: an answer that is drawn before its scene is distributed evenly."""
        raise NotImplementedError(f"{type(self).__name__} must define question(draw, things, wish)")

    def kinds(self, draw: random.Random, wish: int) -> list[Kind]:
        """The kinds of the objects of a scene; the target comes first."""
        target = draw.choice(scenes.KINDS)
        return [target, *(scenes.similar_to(draw, target, self.similar) for _ in range(draw.randint(1, self.objects) - 1))]

    def _pose(self, split: str, number: int) -> Prompt:
        id = f"{split}-{number}"
        wish = chance(self.seed, "grounding", self.asks, id, "wish").randint(0, self.objects)
        for attempt in range(ATTEMPTS):
            draw = chance(self.seed, "grounding", self.asks, id, str(attempt))
            things = scenes.arrange(draw, self.kinds(draw, wish), self.size, self._grid)
            if posed := self.question(draw, things, wish):
                break
        else:
            raise UserError(f"found no scene of {self.objects} objects that allows a question: lower objects, similar or grid")
        text, answer, about, more = posed
        size = (self.size, self.size)
        picture = scenes.paint(draw, "test" if split == "test" else "train", draw.sample(things, len(things)), self.size)
        alike = sum(t.kind[0] == things[0].kind[0] or t.kind[1] == things[0].kind[1] for t in things[1:])
        meta = self.meta(self.asks, size, [t.box for t in about], difficulty=len(things) + alike, **more)
        return Prompt(id=id, messages=[user_message(self.asked(text, self.asks, size), picture)], answer=answer, meta=meta)


@dataclass(kw_only=True, eq=False)
class Refer(Scenes):
    """The box of the object that an expression describes."""

    asks = "box"

    def question(self, draw: random.Random, things: list[Thing], wish: int) -> Any:
        words = scenes.expression(draw, things[0], things, self.size)
        if words is None:
            return None
        more = {"expression": words, "thought": f"I look for {words}."}
        return f"Where is {words}?", list(things[0].box), things[:1], more


@dataclass(kw_only=True, eq=False)
class Point(Scenes):
    """A point on the object that an expression describes."""

    asks = "point"

    def question(self, draw: random.Random, things: list[Thing], wish: int) -> Any:
        words = scenes.expression(draw, things[0], things, self.size)
        if words is None:
            return None
        more = {"expression": words, "thought": f"I look for {words}."}
        return f"Point at {words}.", list(things[0].box), things[:1], more


@dataclass(kw_only=True, eq=False)
class Detect(Scenes):
    """All objects of some labels, each with its box."""

    labels: int = 2
    """Maximum of labels in a question; one of them may be absent from the scene."""

    asks = "boxes"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("labels", self.labels, 1, 8)

    def question(self, draw: random.Random, things: list[Thing], wish: int) -> Any:
        there = list(dict.fromkeys(t.label for t in things))
        absent = [label for kind in scenes.KINDS if (label := " ".join(kind)) not in there]
        wanted = there[: draw.randint(1, self.labels)]
        if draw.random() < 0.2:  # one label is absent; with a single label the answer is empty
            wanted[-1] = draw.choice(absent)
        draw.shuffle(wanted)
        found = sorted((t for t in things if t.label in wanted), key=lambda t: (wanted.index(t.label), t.box))
        answer = [{"bbox_2d": list(t.box), "label": t.label} for t in found]
        named = " and every ".join((", every ".join(wanted[:-1]), wanted[-1])) if len(wanted) > 1 else wanted[0]
        return f"Find every {named}.", answer, found, {"labels": wanted, "thought": f"I look for every {named}."}


@dataclass(kw_only=True, eq=False)
class Count(Scenes):
    """The number of objects of a kind, a colour or a shape."""

    objects: int = 5

    asks = "count"

    def kinds(self, draw: random.Random, wish: int) -> list[Kind]:
        """`wish` of one kind, and others."""
        target, total = draw.choice(scenes.KINDS), draw.randint(max(1, wish), self.objects)
        others = (scenes.similar_to(draw, target, self.similar) for _ in range(total - wish))
        return [target] * wish + list(others)

    def question(self, draw: random.Random, things: list[Thing], wish: int) -> Any:
        colour, shape = things[0].kind if wish else self._absent(draw, things)
        by = draw.choice(("kind", "shape", "colour")) if self.similar else "kind"
        several = f"{shape}es" if shape.endswith("ch") else f"{shape}s"
        if by == "colour" and (shape == "tile" or any("tile" in t.kind for t in things)):  # a photograph has colours of its own
            by = "kind"
        if by == "shape":
            name, found = several, [t for t in things if t.kind[1] == shape]
        elif by == "colour":
            name, found = f"{colour} things", [t for t in things if t.kind[0] == colour]
        else:
            name, found = f"{colour} {several}", [t for t in things if t.kind == (colour, shape)]
        if len(found) != wish:
            return None
        return f"How many {name} are there?", wish, found, {"thought": f"I count the {name}."}

    def _absent(self, draw: random.Random, things: list[Thing]) -> Kind:
        """A kind that is absent; with probability `similar` it shares colour or shape with an object of the scene."""
        there = [t.kind for t in things]
        absent = [kind for kind in scenes.KINDS if kind not in there]
        alike = [kind for kind in absent if any(kind[0] == k[0] or kind[1] == k[1] for k in there)]
        return draw.choice(alike if alike and draw.random() < self.similar else absent)

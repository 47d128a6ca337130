"""Jigsaw puzzles as tasks: the whole permutation, how two patches lay to each other, where one belongs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mmrl import Case, Overlay, Prompt, Task, UserError, user_message
from mmrl.api.tasks.image_sources import ImageFolder, ImageSource, PhotographCrops, chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl.api.tasks.overlays import OverlaySource
from mmrl_jigsaw import puzzle, verifiers, words
from mmrl_jigsaw.puzzle import Size

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST = 14
"""Pixels of a patch's side: what most vision models see as one."""


@dataclass(kw_only=True, eq=False)
class Jigsaw(Task):
    """What the three questions share. The run's seed draws nothing: an id always means the same puzzle."""

    path: str | None = None
    """A folder of images, with or without folders in it; by default, square pieces of the photographs at hand."""
    rows: int = 2
    """Of the grid: m."""
    columns: int = 2
    """Of the grid: n."""
    sizes: Sequence[str] = ()
    """Grids such as ["2x1", "3x1", "2x2"], rows first, in the place of `rows` and `columns`: each puzzle has one of them. Their
    difficulty is the number of patches, so that a stage with order = "easy-first" is a curriculum."""
    turned: bool = False
    """Half of the puzzles have rows and columns exchanged."""
    mask: float = 0.0
    """Black borders in the patches, from 0 to below 0.5 of their height and width: half of it between patches, all of it where
    the picture ends. Then lines that go on in the next patch give less away."""
    identity: Literal["allowed", "excluded"] = "allowed"
    """Whether a puzzle may come out unshuffled."""
    size: int = 112
    """The picture's longer side in pixels; larger images of a folder are shrunk to it, and 0 leaves them as they are."""
    style: Literal["plain", "tags", "jigsaw-r1", "jigsaw-r1-direct", "ssl4rl"] = "plain"
    """How the answer is asked for. plain: the answer alone. tags: a thought and the answer, each in its tag. jigsaw-r1 and
    jigsaw-r1-direct: in the words of Jigsaw-R1, with a thought and without. ssl4rl: in the words of SSL4RL."""
    photographs: Sequence[str] = ()
    """Those that are used, such as ["china", "coffee"]; by default all at hand, textures among them."""
    train: int = 4096
    """Puzzles of photographs to train on."""
    test: int = 512
    """Puzzles of photographs to test on."""
    each: int = 1
    """Puzzles of each image of a folder."""
    seed: int = 0
    """Draws the puzzles, and which image of a folder belongs to which split."""

    kind = "full"

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("rows", self.rows, 1, puzzle.MOST),
            ("columns", self.columns, 1, puzzle.MOST),
            ("train", self.train, 1, 10**7),
            ("test", self.test, 1, 10**7),
            ("each", self.each, 1, 10**4),
            ("seed", self.seed, -(2**63), 2**63),
            ("size", self.size, 0, 4096),
        ):
            check_integer(name, value, low, high)
        if self.path is not None:
            check_type("path", self.path, str)
        if not isinstance(self.photographs, list | tuple):
            raise UserError(f'photographs = {self.photographs!r:.200} must be a list, such as ["china", "coffee"]')
        for name, given, choices in (("style", self.style, words.STYLES), ("identity", self.identity, ("allowed", "excluded"))):
            check_choice(name, given, choices)
        check_type("turned", self.turned, bool)
        if isinstance(self.mask, bool) or not isinstance(self.mask, int | float) or not 0 <= self.mask < 0.5:
            raise UserError(f"mask = {self.mask!r:.60} must be a number from 0 to below 0.5: a share of each patch")
        if isinstance(self.sizes, str) or not isinstance(self.sizes, Sequence):
            raise UserError(f'sizes = {self.sizes!r:.200} must be a list, such as ["2x1", "2x2"]')
        self.grids = [puzzle.size_of(text) for text in self.sizes or (f"{self.rows}x{self.columns}",)]
        self._check()
        self.source: ImageSource = (
            ImageFolder(self.path, self.size, self.each, self.seed)
            if self.path is not None
            else PhotographCrops(self.size, {"train": self.train, "test": self.test}, self.seed, self.photographs)
        )

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.source.ids)
        return LazyPrompts(range(len(self.source.ids[split])), lambda index: self._pose(split, index))

    def gold(self, prompt: Prompt) -> str:
        answer = self.written(prompt)
        if not words.has_tags(self.style):
            return answer
        return f"<think>{self.thought(prompt)}</think>{' ' if self.style == 'ssl4rl' else chr(10)}<answer>{answer}</answer>"

    def overlays(self, prompt: Prompt, completion: str) -> list[Overlay]:
        """The grid over the shuffled picture, with where each patch belongs and where a completion says that it does."""
        if "boxes" not in prompt.meta:  # its patches are pictures of their own
            return []
        texts: dict[OverlaySource, str] = {"true": self.gold(prompt), "said": completion}
        found = {of: self.cells(Case(completion=text, answer=prompt.answer, meta=prompt.meta)) for of, text in texts.items()}
        size = (prompt.meta["m"], prompt.meta["n"])
        return [Overlay(kind="grid", coordinates=size, source=of, labels=cells) for of, cells in found.items() if cells]

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean of each size apart, where there are several."""
        by_size: dict[str, list[float]] = {}
        for prompt, value in results:
            by_size.setdefault(f"{prompt.meta['m']}x{prompt.meta['n']}", []).append(value)
        return {size: sum(values) / len(values) for size, values in sorted(by_size.items())} if len(by_size) > 1 else {}

    # -- what a question decides ----------------------------------------------------------------------------------------

    def pose(self, order: list[int], size: Size, draw: random.Random) -> tuple[str, Any, dict[str, Any]]:
        """(text, answer, what it adds to meta) for a forward permutation."""
        raise NotImplementedError

    def written(self, prompt: Prompt) -> str:
        """The answer as the style wants it written."""
        return str(prompt.answer)

    def cells(self, case: Case) -> Sequence[str]:
        """What belongs where by a completion, one text for each patch that is shown; nothing where it says nothing."""
        raise NotImplementedError

    def thought(self, prompt: Prompt) -> str:
        """What a gold completion thinks."""
        return f"The edges of the patches fit for the answer {' '.join(self.written(prompt).split())}."

    # -- making a prompt ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse what does not go together."""
        if self.identity == "excluded" and any(grid.patches == 2 for grid in self.grids):
            raise UserError('identity = "excluded" leaves one answer to a puzzle of 2 patches: allow it, or cut into more')
        if self.style == "ssl4rl" and self.kind != "full":
            raise UserError(f'style = "ssl4rl" is for jigsaw/full: it has no words for a {self.kind} question')
        if self.path is None:
            most = max(max(grid) for grid in self.grids)
            if self.size // most < LEAST:
                raise UserError(
                    f"size = {self.size} leaves patches of {self.size // most} pixels, and a model sees none below {LEAST}: "
                    f"set size to {LEAST * most} or more"
                )

    def _pose(self, split: str, index: int) -> Prompt:
        id = self.source.ids[split][index]
        draw = chance(self.seed, "puzzle", id)
        size = draw.choice(self.grids)
        if self.turned and draw.random() < 0.5:
            size = Size(size.columns, size.rows)
        order = puzzle.shuffled(size.patches, draw, self.identity == "allowed")
        pictures, boxes = self._shown(self.source.open(split, index), size, order, id)
        text, answer, meta = self.pose(order, size, draw)
        return Prompt(
            id=id,
            messages=[user_message(text, *pictures)],
            answer=answer,
            meta={
                "m": size.rows,
                "n": size.columns,
                "question": self.kind,
                "tags": words.has_tags(self.style),
                "think": self.style != "jigsaw-r1-direct",
                "difficulty": size.patches * (1 + self.mask),
                **({"boxes": boxes} if boxes else {}),
                **meta,
            },
        )

    def _shown(
        self, picture: Image, size: Size, order: list[int], id: str
    ) -> tuple[list[Image], list[tuple[int, int, int, int]]]:
        """(the pictures of the prompt, the boxes of the patches on the first)."""
        if min(picture.width // size.columns, picture.height // size.rows) < LEAST:
            raise UserError(
                f"image {id} of {picture.width} x {picture.height} is too small to cut into {size}: a patch must have {LEAST} "
                f"pixels a side: take it out{f' of {self.path}' if self.path else ''}, or cut into fewer"
            )
        patches = puzzle.cut(picture, size)
        shown = puzzle.laid_out([patches[place - 1] for place in order], size)
        if self.mask:
            shown = puzzle.masked(shown, size, self.mask)
        if getattr(self, "layout", "picture") == "patches":
            return puzzle.cut(shown, size), []
        return [shown], puzzle.boxes(shown.size, size)


@dataclass(kw_only=True, eq=False)
class Full(Jigsaw):
    """Where every patch of a shuffled picture belongs: m x n numbers."""

    convention: Literal["forward", "inverse"] = "forward"
    """What the numbers say, row by row. forward, as in Jigsaw-R1: for each patch shown, where it belongs in the original.
    inverse, as in SSL4RL: for each position of the original, where its patch is shown."""
    layout: Literal["picture", "patches"] = "picture"
    """The shuffled picture as one, or each patch as a picture of its own, in shuffled order."""

    def pose(self, order: list[int], size: Size, draw: random.Random) -> tuple[str, Any, dict[str, Any]]:
        answer = order if self.convention == "forward" else puzzle.inverse_of(order)
        if self.style == "ssl4rl":
            return words.ssl4rl(size), ",".join(map(str, answer)), {"forward": False}
        if self.style.startswith("jigsaw-r1"):
            text = words.jigsaw_r1("full", words.jigsaw_r1_full(self.convention), size, self.mask, self.style == "jigsaw-r1")
        else:
            apart = self.layout == "patches"
            text = words.ask("full", words.full_question(size, self.convention, apart), size, apart, self.mask, self.style)
        return text, answer, {"forward": self.convention == "forward"}

    def written(self, prompt: Prompt) -> str:
        if self.style == "ssl4rl":
            return str(prompt.answer)
        if self.style.startswith("jigsaw-r1"):
            return words.grid(prompt.answer, Size(prompt.meta["m"], prompt.meta["n"]))
        return " ".join(map(str, prompt.answer))

    def cells(self, case: Case) -> Sequence[str]:
        given, _ = verifiers.permutation(case, case.meta["m"] * case.meta["n"])
        if given is None:
            return ()
        return [str(place) for place in (given if self.convention == "forward" else puzzle.inverse_of(given))]

    def _check(self) -> None:
        check_choice("convention", self.convention, ("forward", "inverse"))
        check_choice("layout", self.layout, ("picture", "patches"))
        super()._check()
        if self.style == "ssl4rl" and (self.layout != "patches" or self.convention != "inverse"):
            raise UserError(
                'style = "ssl4rl" shows patches and wants the inverse: set layout = "patches", convention = "inverse"'
            )
        if self.style == "ssl4rl" and any(grid.rows != grid.columns or grid.rows > 6 for grid in self.grids):
            raise UserError(
                f'style = "ssl4rl" is for 2x2 to 6x6, and here is {", ".join(map(str, self.grids))}: choose one of them'
            )
        if self.style.startswith("jigsaw-r1") and self.layout == "patches":
            raise UserError(f'style = "{self.style}" speaks of one picture: leave out layout = "patches"')


@dataclass(kw_only=True, eq=False)
class Single(Jigsaw):
    """Where one patch belongs: a number."""

    convention: Literal["forward", "inverse"] = "forward"
    """What is asked. forward: where a patch that is shown belongs. inverse: where a patch of the original is shown."""

    kind = "single"

    def pose(self, order: list[int], size: Size, draw: random.Random) -> tuple[str, Any, dict[str, Any]]:
        place = draw.randint(1, size.patches)
        answer = order if self.convention == "forward" else puzzle.inverse_of(order)
        if self.style.startswith("jigsaw-r1"):
            question = words.jigsaw_r1_single(place, self.convention)
            text = words.jigsaw_r1("single", question, size, self.mask, self.style == "jigsaw-r1")
        else:
            text = words.ask("single", words.single_question(place, self.convention), size, False, self.mask, self.style)
        return text, str(answer[place - 1]), {"place": place}

    def cells(self, case: Case) -> Sequence[str]:
        given, _ = verifiers.numbers(case, 1)
        asked, count = case.meta["place"], case.meta["m"] * case.meta["n"]
        if given is None or not 1 <= given[0] <= count:
            return ()
        slot, place = (asked, given[0]) if self.convention == "forward" else (given[0], asked)
        return [str(place) if patch == slot else "" for patch in range(1, count + 1)]

    def _check(self) -> None:
        check_choice("convention", self.convention, ("forward", "inverse"))
        super()._check()


@dataclass(kw_only=True, eq=False)
class Pair(Jigsaw):
    """How two patches of the shuffled picture lay to each other in the original: the letter of one of 8 relations, or of 2 where
    the grid is a row or a column."""

    choices: int = 8
    """How many relations are offered, at most: the right one, others, in an order of their own. From 2."""

    kind = "pair"

    def pose(self, order: list[int], size: Size, draw: random.Random) -> tuple[str, Any, dict[str, Any]]:
        first, second = draw.sample(range(1, size.patches + 1), 2)
        right = puzzle.relation(order[first - 1], order[second - 1], size.columns)
        others = [relation for relation in puzzle.relations(size) if relation != right]
        offered = [right, *draw.sample(others, min(self.choices - 1, len(others)))]
        draw.shuffle(offered)
        choices = [f"{first} is {relation} {second}" for relation in offered]
        if self.style.startswith("jigsaw-r1"):
            question = words.jigsaw_r1_pair(first, second, choices)
            text = words.jigsaw_r1("pair", question, size, self.mask, self.style == "jigsaw-r1")
        else:
            text = words.ask("pair", words.pair_question(first, second, choices), size, False, self.mask, self.style)
        return text, chr(ord("A") + offered.index(right)), {"choices": choices, "pair": (first, second)}

    def overlays(self, prompt: Prompt, completion: str) -> list[Overlay]:
        """The two patches by their numbers; a relation has no place."""
        size = (prompt.meta["m"], prompt.meta["n"])
        named = [str(patch) if patch in prompt.meta["pair"] else "" for patch in range(1, size[0] * size[1] + 1)]
        return [Overlay(kind="grid", coordinates=size, source="true", labels=named)]

    def _check(self) -> None:
        check_integer("choices", self.choices, 2, len(puzzle.RELATIONS))
        super()._check()

"""Jigsaw puzzles as tasks: the whole permutation, the relative position of two patches, the position of one."""

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
"""Minimal side of a patch in pixels: that of one patch of most vision models."""


@dataclass(kw_only=True, eq=False)
class Jigsaw(Task):
    """Base class of the three questions. The run's seed changes nothing: an id always means the same puzzle."""

    path: str | None = None
    """A folder of images, with or without subfolders; by default, square pieces of the installed photographs."""
    rows: int = 2
    """Rows of the grid: m."""
    columns: int = 2
    """Columns of the grid: n."""
    sizes: Sequence[str] = ()
    """Grids such as ["2x1", "3x1", "2x2"], rows first, instead of `rows` and `columns`: each puzzle has one of them. Their
    difficulty is the number of patches, so that a stage with order = "easy-first" is a curriculum."""
    turned: bool = False
    """Swap rows and columns in half of the puzzles."""
    mask: float = 0.0
    """Width of black borders in the patches, from 0 to below 0.5 of their height and width: half of it between patches, all of it
    at the picture's edges. They hide lines that continue in the next patch."""
    identity: Literal["allowed", "excluded"] = "allowed"
    """Whether a puzzle may be unshuffled."""
    size: int = 112
    """The picture's longer side in pixels; larger images of a folder are reduced to it, and 0 leaves them unchanged."""
    style: Literal["plain", "tags", "jigsaw-r1", "jigsaw-r1-direct", "ssl4rl"] = "plain"
    """The requested form of the answer. plain: the answer alone. tags: a thought and the answer, each in its tag. jigsaw-r1 and
    jigsaw-r1-direct: the prompts of Jigsaw-R1, with a thought and without. ssl4rl: the prompt of SSL4RL."""
    photographs: Sequence[str] = ()
    """Photographs to use, such as ["china", "coffee"]; by default all that are installed, also textures."""
    train: int = 4096
    """Puzzles of photographs to train on."""
    test: int = 512
    """Puzzles of photographs to test on."""
    each: int = 1
    """Puzzles of each image of a folder."""
    seed: int = 0
    """Seed of the puzzles, and of the splits of a folder's images."""

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
        """The grid over the shuffled picture, with each patch's true position and the completion's."""
        if "boxes" not in prompt.meta:  # its patches are separate pictures
            return []
        texts: dict[OverlaySource, str] = {"true": self.gold(prompt), "said": completion}
        found = {of: self.cells(Case(completion=text, answer=prompt.answer, meta=prompt.meta)) for of, text in texts.items()}
        size = (prompt.meta["m"], prompt.meta["n"])
        return [Overlay(kind="grid", coordinates=size, source=of, labels=cells) for of, cells in found.items() if cells]

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean for each size, if there are several."""
        by_size: dict[str, list[float]] = {}
        for prompt, value in results:
            by_size.setdefault(f"{prompt.meta['m']}x{prompt.meta['n']}", []).append(value)
        return {size: sum(values) / len(values) for size, values in sorted(by_size.items())} if len(by_size) > 1 else {}

    # -- defined by each question ----------------------------------------------------------------------------------------

    def pose(self, order: list[int], size: Size, draw: random.Random) -> tuple[str, Any, dict[str, Any]]:
        """(text, answer, additional meta) for a forward permutation."""
        raise NotImplementedError

    def written(self, prompt: Prompt) -> str:
        """The answer as written in this style."""
        return str(prompt.answer)

    def cells(self, case: Case) -> Sequence[str]:
        """The completion's answer as one text for each patch that is shown; empty without an answer."""
        raise NotImplementedError

    def thought(self, prompt: Prompt) -> str:
        """The thought of a gold completion."""
        return f"The edges of the patches fit for the answer {' '.join(self.written(prompt).split())}."

    # -- making a prompt ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise UserError for options that don't fit together."""
        if self.identity == "excluded" and any(grid.patches == 2 for grid in self.grids):
            raise UserError('identity = "excluded" leaves one answer to a puzzle of 2 patches: allow it, or cut into more')
        if self.style == "ssl4rl" and self.kind != "full":
            raise UserError(f'style = "ssl4rl" is for jigsaw/full: it has no prompt for a {self.kind} question')
        if self.path is None:
            most = max(max(grid) for grid in self.grids)
            if self.size // most < LEAST:
                raise UserError(
                    f"size = {self.size} leaves patches of {self.size // most} pixels, and a model needs at least {LEAST}: "
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
    """Meaning of the numbers, row by row. forward, as in Jigsaw-R1: for each patch shown, its position in the original. inverse,
    as in SSL4RL: for each position of the original, where its patch is shown."""
    layout: Literal["picture", "patches"] = "picture"
    """One shuffled picture, or each patch as a separate picture, in shuffled order."""

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
                'style = "ssl4rl" shows patches and needs the inverse: set layout = "patches", convention = "inverse"'
            )
        if self.style == "ssl4rl" and any(grid.rows != grid.columns or grid.rows > 6 for grid in self.grids):
            raise UserError(f'style = "ssl4rl" is for 2x2 to 6x6, not {", ".join(map(str, self.grids))}: choose one of them')
        if self.style.startswith("jigsaw-r1") and self.layout == "patches":
            raise UserError(f'style = "{self.style}" is for one picture: leave out layout = "patches"')


@dataclass(kw_only=True, eq=False)
class Single(Jigsaw):
    """Where one patch belongs: a number."""

    convention: Literal["forward", "inverse"] = "forward"
    """The question. forward: where a patch that is shown belongs. inverse: where a patch of the original is shown."""

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
    """The relative position in the original of two patches of the shuffled picture: the letter of one of 8 relations, or of 2 if
    the grid is a single row or column."""

    choices: int = 8
    """Maximum of relations offered, from 2: the right one and others, in random order."""

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
        """The two patches with their numbers; a relation can't be drawn."""
        size = (prompt.meta["m"], prompt.meta["n"])
        named = [str(patch) if patch in prompt.meta["pair"] else "" for patch in range(1, size[0] * size[1] + 1)]
        return [Overlay(kind="grid", coordinates=size, source="true", labels=named)]

    def _check(self) -> None:
        check_integer("choices", self.choices, 2, len(puzzle.RELATIONS))
        super()._check()

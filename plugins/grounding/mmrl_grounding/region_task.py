"""Regions that a question asks for and a mask says, as spatial benchmarks have them: a point in one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mmrl import NoGold, Overlay, Prompt, UserError, user_message
from mmrl.api.media.images import load_image
from mmrl.api.tasks.columns import check_columns
from mmrl.api.tasks.image_sources import hash_order, hash_rank, split_of
from mmrl.api.tasks.option_checks import check_integer, check_split, check_type, parse_split_shares
from mmrl.api.tasks.overlays import point_overlay
from mmrl.api.tasks.tables import LazyItems, columns_in, fill_columns, read_table, resolve_image
from mmrl_grounding import asking, masks, reading
from mmrl_grounding.coordinates import format_of, in_pixels
from mmrl_grounding.seen import true_overlays
from mmrl_grounding.task import Grounded

TRIED = 64
"""Pixels of a mask, the deepest first, among which a gold answer is looked for that is still inside as it is written."""


@dataclass(kw_only=True, eq=False)
class RegionData(Grounded):
    """A point in the region that a question asks for: where something may be put, what is meant by an expression. A row has a
    picture, the question, and a mask of the picture's proportions, which is white in the region: Where2Place, RefSpatial-Bench,
    RoboSpatial-Home."""

    path: str
    """The table: .jsonl, .json, .csv, .parquet, or a data set's name, as in `BAAI/RefSpatial-Bench@location`."""
    images: str | None = None
    """The folder that paths of pictures and masks are relative to, by default the table's own."""
    image_column: str = "image"
    """The column with the picture."""
    mask_column: str = "mask"
    """The column with the mask, a path, a picture or its bytes. A row without a mask is left out with a message."""
    question: str = "{question}"
    """The question, with columns in braces: RefSpatial-Bench's is {prompt}."""
    shares: Mapping[str, float] = field(default_factory=lambda: {"train": 0.9, "test": 0.1})
    """Split -> share of the pictures, so that no picture is in two splits."""
    seed: int = 0
    """Seed of the splits. The run's seed doesn't change them."""

    styles: ClassVar[tuple[str, ...]] = asking.STYLES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("seed", self.seed, -(2**62), 2**62)
        for option in ("path", "image_column", "mask_column", "question"):
            check_type(option, getattr(self, option), str)
        if self.images is not None:
            check_type("images", self.images, str)
        self._table, shares = read_table(self.path), parse_split_shares("shares", self.shares)
        named = {getattr(self, option): f"{option} = {getattr(self, option)!r:.60}" for option in ("image_column", "mask_column")}
        named |= {column: f"{column!r:.60} of question" for column in columns_in(self.question)}
        check_columns(self._table, {column: (what, "") for column, what in named.items()})
        keys = [_key((row or {}).get(self.image_column), n) for n, row in enumerate(self._table.scan([self.image_column]))]
        self.splits = tuple(shares)  # type: ignore[misc]  # the options decide which there are
        numbers: dict[str, list[int]] = {name: [] for name in shares}
        for number, key in enumerate(keys):
            numbers[split_of(key, self.seed, shares)].append(number)
        for name, own in numbers.items():
            if not own:
                raise UserError(f"split {name!r} of {self.path} is empty: add rows, or change shares")
        self._chosen = {name: hash_order(own, self.seed, "order", name) for name, own in numbers.items()}

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        check_split(split, self.splits)
        return LazyItems(self._table, lambda row, number: self._pose(f"{split}-{number}", row), self._chosen[split])

    def truth_as_written(self, prompt: Prompt) -> Any:
        """A point that is still in the region as an answer writes it. Raises NoGold if none of `TRIED` is."""
        size, mask = prompt.meta["size"], masks.read(prompt.answer["mask"])
        for point in masks.deepest(mask, TRIED):
            at = tuple(v * side / own for v, side, own in zip(point, size, mask.shape[::-1], strict=True))
            for one in (tuple(map(int, at)), at):  # whole pixels, if one will do
                written = self.as_written(one, size)
                if masks.holds(mask, in_pixels(written, self.case(prompt, "")), size):
                    return written
        raise NoGold("no point of the mask is still in it as an answer writes it")

    def overlays(self, prompt: Prompt, completion: str) -> list[Overlay]:
        """The box around the region, and the point in a completion."""
        case = self.case(prompt, completion)
        text, _ = reading.said(case)
        at = None if text is None else reading.point(text, format_of(case).y_first)
        said = [] if at is None else [point_overlay(in_pixels(at, case), prompt.meta["size"], "said", masks.region(case).detail)]
        return [*true_overlays(case), *said]

    def _pose(self, id: str, row: Mapping[str, Any]) -> Prompt:
        picture = resolve_image(self.path, row[self.image_column], self.images)
        if row[self.mask_column] in (None, ""):
            raise ValueError(f"it has no {self.mask_column}")
        size = load_image(picture).size
        mask = np.asarray(load_image(resolve_image(self.path, row[self.mask_column], self.images)).convert("L")) > 127
        if not mask.any():
            raise ValueError(f"its {self.mask_column} is black: nowhere would be right")
        high, wide = mask.shape
        if abs(wide / high * size[1] / size[0] - 1) > 0.05:
            raise ValueError(
                f"its {self.mask_column} has {wide} x {high} pixels, and the picture {size[0]} x {size[1]}: not alike"
            )
        text = fill_columns(self.question, row).replace("<image>", "").strip()
        if not text:
            raise ValueError("its question is empty")
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        corners = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        box = [float(v * size[i % 2] / (wide, high)[i % 2]) for i, v in enumerate(corners)]
        meta = self.meta("point", size, [box], expression=text, thought="I look for a place in it.")
        asked, answer = self.asked(text, "point", size), {"mask": masks.written(mask)}
        return Prompt(id=id, messages=[user_message(asked, picture)], answer=answer, meta=meta)


def _key(picture: Any, number: int) -> str:
    """What tells a picture from others; the row's number, if it has none."""
    return str(hash_rank(0, picture.hex())) if isinstance(picture, bytes) else str(picture or number)

"""Common parts of the tasks on your own data: sources of rows, and their splits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrl import Prompt, UserError
from mmrl.api.errors import display_path
from mmrl.api.media.images import load_image
from mmrl.api.tasks.image_sources import hash_rank, split_of
from mmrl.api.tasks.option_checks import check_integer, check_split, check_type, parse_split_shares
from mmrl.api.tasks.tables import DataTable, LazyItems
from mmrl_gui.screened import Screened
from mmrl_gui.tables import Table, tables


@dataclass(kw_only=True, eq=False)
class Data(Screened):
    """Base class of tasks on your own rows. A subclass reads tables and makes a prompt from a row."""

    path: str
    """The table: .json, .jsonl, .csv, .parquet, a folder of such, a data set's name; or several, joined by ':'."""
    images: str | None = None
    """The folder that picture paths are relative to, by default the table's own; or one for each, joined by ':'."""
    test_path: str | None = None
    """A separate table for the split `test`, with pictures in the same folders; `path` then only serves the other splits."""
    shares: Mapping[str, float] = field(default_factory=lambda: {"train": 0.9, "test": 0.1})
    """Split -> share, assigned by the names of pictures or episodes, so that none is in two splits. {test = 1} is for tests
    only."""
    seed: int = 0
    """Seed of the splits. The run's seed doesn't change them, so that no test row is ever trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("seed", self.seed, -(2**62), 2**62)
        for option in ("path", "images", "test_path"):
            if (value := getattr(self, option)) is not None:
                check_type(option, value, str)
        shares = parse_split_shares("shares", self.shares, without="test" if self.test_path else None)
        rows, keys = self.rows(tables(self.path, self.images))
        self._chosen: dict[str, list[int]] = {name: [] for name in shares}
        self._tables = dict.fromkeys(shares, rows)
        for number in self.wanted(rows):
            self._chosen[split_of(keys[number], self.seed, shares)].append(number)
        if self.test_path:
            self._tables["test"], _ = self.rows(tables(self.test_path, self.images))
            self._chosen["test"] = list(self.wanted(self._tables["test"]))
        self.splits = tuple(self._tables)  # type: ignore[misc]  # the options decide which there are
        for name, numbers in self._chosen.items():
            if not numbers:
                raise UserError(self._empty(name))
            numbers.sort(key=lambda number: hash_rank(self.seed, "order", name, str(number)))

    def _empty(self, name: str) -> str:
        """The error for a split without rows."""
        if name == "test" and self.test_path:
            return f"split 'test' of {display_path(self.test_path)} is empty: add rows, or leave test_path out"
        found = sum(len(numbers) for split, numbers in self._chosen.items() if not (split == "test" and self.test_path))
        if not found:
            return f"split {name!r} of {display_path(self.path)} is empty: none of its {len(self._tables[name])} rows is suitable"
        others = [split for split in self._chosen if split != name and not (split == "test" and self.test_path)]
        example = ", ".join(f"{split} = 1" for split in others)
        return (
            f"split {name!r} of {display_path(self.path)} is empty: all of the {found} rows are in {', '.join(others)}: "
            "add rows, or "
            f"change shares, such as shares = {{{example}}}"
        )

    def rows(self, found: list[Table]) -> tuple[DataTable, Sequence[str]]:
        """(the rows of some tables, the key that decides the split of each)."""
        raise NotImplementedError(f"{type(self).__name__} must define rows(found)")

    def wanted(self, rows: DataTable) -> Sequence[int]:
        """The numbers of the rows with prompts; by default all."""
        return range(len(rows))

    def pose(self, row: dict[str, Any], number: int, rows: Any) -> Prompt:
        """A prompt, its id without the split. Raises ValueError for an unusable row."""
        raise NotImplementedError(f"{type(self).__name__} must define pose(row, number, rows)")

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        """Prompts in an order in which neighbouring rows of the table are far apart."""
        check_split(split, self.splits)
        rows = self._tables[split]
        return LazyItems(rows, lambda row, number: _of(split, self.pose(row, number, rows)), self._chosen[split])


def size_of(image: Any) -> tuple[int, int]:
    """(width, height) of a row's picture. Raises UserError if it can't be opened."""
    try:
        width, height = load_image(image).size
    except UserError as error:
        more = ", or images, the folder of the pictures" if isinstance(image, str) and not os.path.exists(image) else ""
        raise UserError(f"{error}{more}") from error
    return width, height


def _of(split: str, prompt: Prompt) -> Prompt:
    from dataclasses import replace

    return replace(prompt, id=f"{split}-{prompt.id}")

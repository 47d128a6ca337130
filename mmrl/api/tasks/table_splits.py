"""The splits of tables: two tables, or one that is divided."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from mmrl.api.errors import UserError, display_path
from mmrl.api.tasks.image_sources import split_of
from mmrl.api.tasks.tables import DataTable, read_table

Splits = tuple[dict[str, DataTable], dict[str, Sequence[int]]]
"""(split -> its table, split -> the numbers of its rows there). A split without rows is left out."""


def open_splits(
    path: str, test_path: str | None, test_share: float, *, name: str | None = None, revision: str | None = None
) -> Splits:
    """`train` and `test` of a table and of `test_path`, or, without one, a data set's own, or the table divided by row numbers.

    test_share: share of the rows in `test` of a table that is divided; 1 for a benchmark, which has no other split. name,
    revision: of a data set. Raises UserError for a table without rows, and if none is left for `train`.
    """
    train = read_rows(path, main_split(test_share), name, revision)
    if test_path is not None:
        return undivided(train, read_rows(test_path, "test", name, revision))
    test = train if test_share == 1 else own_test(path, train, name, revision)
    return divided(train, test_share) if test.name == train.name else undivided(train, test)


def read_rows(path: str, split: str, name: str | None = None, revision: str | None = None) -> DataTable:
    """A table with at least a row; see `read_table`."""
    rows = read_table(path, name=name, revision=revision, split=split)
    if not len(rows):
        raise UserError(f"{display_path(rows.name)} has no rows: add some, or correct the path")
    return rows


def main_split(test_share: float) -> str:
    """The split of a data set whose rows are divided: `test` for a benchmark, all of whose rows are there."""
    return "test" if test_share == 1 else "train"


def own_test(path: str, train: DataTable, name: str | None = None, revision: str | None = None) -> DataTable:
    """The split `test` of a data set; `train`, which was read from the same path, if it has none, and for any other table."""
    if train.name == str(path):  # a file, or a data set without splits
        return train
    try:
        test = read_table(path, name=name, revision=revision, split="test")
    except UserError:  # another cause would have been raised for `train`
        return train
    return test if len(test) else train


def undivided(train: DataTable, test: DataTable) -> Splits:
    return {"train": train, "test": test}, {"train": range(len(train)), "test": range(len(test))}


def divided(rows: DataTable, test_share: float, key: Callable[[int], str] = str, what: str = "rows") -> Splits:
    """One table as two splits, or as `test` alone where `test_share` is 1. key: the text by which a row, by its number, is put
    into a split. what: what is divided, for the message."""
    if test_share == 1:
        return {"test": rows}, {"test": range(len(rows))}
    parts = {"train": array("Q"), "test": array("Q")}  # 8 bytes a row
    shares = {"train": 1 - test_share, "test": test_share}
    for number in range(len(rows)):
        parts[split_of(key(number), 0, shares)].append(number)
    if not parts["train"]:
        together = len({key(number) for number in range(len(rows))}) < len(rows)
        whole = "; what belongs together stays in one split" if together else ""
        raise UserError(
            f"all {len(rows)} {what} of {display_path(rows.name)} are in 'test': add more, or set test_share or test_path{whole}"
        )
    named: dict[str, Sequence[int]] = {split: numbers for split, numbers in parts.items() if numbers}
    return dict.fromkeys(named, rows), named

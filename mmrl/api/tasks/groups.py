"""Figures of an evaluation by columns of a table, as benchmarks report them: the mean of each group of rows, and the share of
sets of rows that are right as a whole."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.tasks.columns import check_columns
from mmrl.api.tasks.tables import DataTable
from mmrl.api.types import Prompt

KEY = "groups"
"""The entry of a prompt's `meta` with the row's cells."""
SIZES = "set_sizes"
"""The entry of a prompt's `meta` with the sizes of its sets: figure -> rows of the table that are in the same set."""
PARTS = "see evaluate.num_prompts and how the table is split"
"""Where to look if an evaluation has parts of sets: a table may be cut by rows, and a split of its own may have parts."""
OF_ALL = ("truncated_share", "failed", "left_out")
"""Figures that every evaluation reports."""
_DIVISION = re.compile(r"(?:\((.+) \+ ([0-9]{1,18})\)|(.+)) (%|//) ([1-9][0-9]{0,17})")
"""A column of whole numbers, what is added to them, and what they are divided by, see `cells_of`."""
_Set = tuple[str, tuple[Any, ...]]
"""(figure, what tells the set from others)."""


def check_groups(groups: Any, sets: Any, own: Sequence[str] = ()) -> tuple[str, ...]:
    """Raise UserError for options that can't be meant. groups: names of columns; sets: name of a figure -> columns, rows that are
    equal in all of them being a set. own: figures that the task reports without these options. Returns all columns."""
    if not isinstance(groups, list | tuple) or not all(isinstance(one, str) and one for one in groups):
        raise UserError(f'groups = {groups!r:.100} must be a list of columns, such as ["category"]')
    lists: list[Any] = list(sets.values()) if isinstance(sets, Mapping) else [None]
    if not all(isinstance(one, list | tuple) and one and all(isinstance(c, str) and c for c in one) for one in lists):
        raise UserError(f'sets = {sets!r:.100} must be a table of lists of columns, such as {{question = ["set", "id"]}}')
    for figure in sets:
        if figure in (*OF_ALL, *own):
            raise UserError(f"sets: {figure!r} is a figure that an evaluation reports without it: choose another name")
        if short := next((one for one in _short(groups).values() if figure.startswith(f"{one}_")), None):
            raise UserError(
                f"sets: {figure!r} may also be the figure of a group, which are called {short}_...: choose another name"
            )
        begins = [f"{other}_{short}_" for other in sets for short in _short(groups).values()]
        if begin := next((one for one in begins if figure.startswith(one)), None):
            raise UserError(f"sets: {figure!r} may also be the figure of sets of a group, {begin}...: choose another name")
    return tuple(dict.fromkeys([*groups, *(column for one in lists for column in one)]))


def check_group_columns(columns: Sequence[str], tables: Iterable[DataTable]) -> None:
    """Raise UserError if a table lacks one of the columns of `check_groups`, as all of its rows would be broken."""
    asked = {_divided(column)[0]: (f"{column!r:.60} of groups, sets or figures", "") for column in columns}
    for rows in tables:
        check_columns(rows, asked)


def cells_of(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """`{"groups": {column: cell}}` for a prompt's `meta`, empty without columns. A column such as `metadata.task` is a key of an
    object in a cell; `index % 1000000` is the remainder of a whole number, as MMBench tells which rows ask the same, and
    `(index + 1) // 2` a quotient without its fraction, as of MMVP's pairs. Raises KeyError for a column that the row doesn't
    have, UserError for one that holds an object or has no whole number to divide."""
    found: dict[str, Any] = {}
    for column in columns:
        name, divide = (column, None) if column in row else _divided(column)
        cell: Any = row
        for key in [name] if name in row else name.split("."):
            if not isinstance(cell, Mapping) or key not in cell:
                raise KeyError(name)
            cell = cell[key]
        if divide and str(cell if cell is not None else "").strip():
            if not str(cell).strip().isdecimal():
                raise UserError(f"{column!r} divides whole numbers, and a row has {cell!r:.60}")
            cell = divide(int(cell))
        if isinstance(cell, Mapping):
            raise UserError(f"{column!r} holds an object: name one of its keys, such as '{column}.{next(iter(cell), 'key')}'")
        found[column] = cell
    return {KEY: found} if found else {}


def _divided(column: str) -> tuple[str, Callable[[int], int] | None]:
    """(the column, how its numbers are divided, if they are)."""
    found = _DIVISION.fullmatch(column)
    if not found:
        return column, None
    more, by = int(found[2] or 0), int(found[5])
    return found[1] or found[3], lambda number: (number + more) % by if found[4] == "%" else (number + more) // by


@dataclass(frozen=True)
class RowSets:
    """The sets of a table's rows. It is read when the first is asked for."""

    sets: Mapping[str, Sequence[str]]
    """Name of a figure -> columns, see `check_groups`."""
    scan: Callable[[Sequence[str]], Iterable[Mapping[str, Any] | None]]
    """Reads these columns of all rows of the table, None for an unreadable row: `DataTable.scan`."""

    def sizes(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """`{"set_sizes": {figure: rows of the row's set}}` for a prompt's `meta`, empty without sets. Raises as `cells_of`."""
        found = {figure: self._counted[figure, _set_of(row, columns)] for figure, columns in self.sets.items()}
        return {SIZES: found} if found else {}

    def linked(self, numbers: Sequence[int]) -> list[int] | None:
        """A number for each of these rows, for `Task.prompt_sets`: the same for rows that share a set of some figure, directly or
        through others of them. None without sets."""
        return _linked([self._of_rows[number] for number in numbers]) if self.sets else None

    def keys(self, keys: Iterable[str]) -> list[str]:
        """The key of each row by which a table is divided, so that no set is in two splits: of rows that have the same key or
        share a set, directly or through others, that of the first. keys: of all rows; without sets they stay as they are."""
        if not self.sets:
            return [*keys]
        of_rows = [(key, [*own, ("", (key,))]) for key, own in zip(keys, self._of_rows, strict=True)]
        return [of_rows[first][0] for first in _linked([own for _, own in of_rows])]

    @cached_property
    def _counted(self) -> Counter[_Set]:
        return Counter(one for own in self._of_rows for one in own)

    @cached_property
    def _of_rows(self) -> list[list[_Set]]:
        """The sets of each row."""
        found: list[list[_Set]] = []
        columns = {name for own in self.sets.values() for column in own for name in (column, _divided(column)[0])}
        for row in self.scan([*columns, *{column.partition(".")[0] for column in columns}]):
            found.append([])
            for figure, own in self.sets.items():
                with suppress(KeyError, UserError):  # it raises when it is used
                    if all(key := _set_of(row or {}, own)):
                        found[-1].append((figure, key))
        return found


def _linked(of_rows: Sequence[Sequence[_Set]]) -> list[int]:
    """The index of the first row that is linked to each by sets that rows share."""
    before, first = [*range(len(of_rows))], dict[_Set, int]()

    def found(row: int) -> int:
        while before[row] != row:
            before[row] = row = before[before[row]]
        return row

    for row, own in enumerate(of_rows):
        for one in own:
            here, there = found(row), found(first.setdefault(one, row))
            before[max(here, there)] = min(here, there)
    return [found(row) for row in range(len(before))]


def _set_of(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[Any, ...]:
    """What tells a row's set from others, for `columns`."""
    cells = cells_of(row, columns)[KEY]
    return tuple(_names(cells[column]) for column in columns)


def group_figures(
    results: Sequence[tuple[Prompt, float]], groups: Sequence[str], sets: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Of each column, `COLUMN_GROUP`, the mean score of each group, and `COLUMN_mean`, the mean of these means; and the name of
    each figure of sets, the share of sets whose scores are all 1, with `FIGURE_COLUMN_GROUP`, that of the sets whose rows are all
    in a group. `metadata.task` is `task` there, unless another column is.

    Only sets count whose rows are all in the results: parts of them are right more often. Prompts have the sizes of `RowSets`;
    without them every set counts as it is. Of fewer than half of the sets there is no figure, as small sets are whole more often
    than large ones. A row with a list in a column belongs to several groups; one with an empty cell to none, and to no set.
    Where that leaves a column or a set without a figure, a warning says so."""
    figures: dict[str, float] = {}
    for column, short in _short(groups).items():
        means = _means((name, score) for prompt, score in results for name in _names(prompt.meta[KEY][column]))
        figures |= {f"{short}_{name}": value for name, value in means.items()}
        if means:
            figures[f"{short}_mean"] = sum(means.values()) / len(means)
        elif results:
            warnings.warn(f"groups: {column!r} is empty in all {len(results)} rows of an evaluation: no figures", stacklevel=2)
    for figure, columns in sets.items():
        found: dict[tuple[Any, ...], list[tuple[Prompt, float]]] = {}
        for prompt, score in results:
            key = _set_of(prompt.meta[KEY], columns)
            if all(key):
                found.setdefault(key, []).append((prompt, score))
        evaluated = [own for own in found.values() if len(own) >= own[0][0].meta.get(SIZES, {}).get(figure, 0)]
        whole = [([p.meta[KEY] for p, _ in own], float(min(score for _, score in own) >= 1)) for own in evaluated]
        if whole and 2 * len(whole) >= len(found):
            figures[figure] = sum(right for _, right in whole) / len(whole)
            for column, short in _short(groups).items():
                means = _means((name, right) for cells, right in whole for name in _in_all(cells, column))
                figures |= {f"{figure}_{short}_{name}": value for name, value in means.items()}
        elif results:
            what = f"one of {', '.join(columns)}" if len(columns) > 1 else columns[0]
            why = f"{what} is empty in all {len(results)} rows of an evaluation"
            if found:
                why = f"{len(whole)} of the {len(found)} sets of an evaluation are whole, {PARTS}"
            warnings.warn(f"sets: {why}: no {figure!r}", stacklevel=2)
    return figures


def _means(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The mean of the scores of each name."""
    found: dict[str, list[float]] = {}
    for name, score in scores:
        found.setdefault(name, []).append(score)
    return {name: sum(own) / len(own) for name, own in sorted(found.items())}


def _in_all(cells: Sequence[Mapping[str, Any]], column: str) -> set[str]:
    """The groups of a column to which all rows of a set belong."""
    return set.intersection(*(set(_names(one[column])) for one in cells))


def _short(groups: Sequence[str]) -> dict[str, str]:
    """Column -> what its figures begin with: the end of its name, unless that of another column ends in the same."""
    ends = {column: column.rpartition(".")[2] for column in groups}
    return {column: column if list(ends.values()).count(end) > 1 else end for column, end in ends.items()}


def _names(cell: Any) -> tuple[str, ...]:
    """The groups of a cell."""
    cells = cell if isinstance(cell, list | tuple) else [cell]
    return tuple(str(one).strip() for one in cells if one is not None and str(one).strip())

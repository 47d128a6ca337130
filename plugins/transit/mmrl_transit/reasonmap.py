"""Your own maps: rows in the form of ReasonMap and ReasonMap-Plus (Feng et al. 2025)."""

from __future__ import annotations

import functools
import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl import Prompt, Task, UserError, user_message
from mmrl.api.errors import display_path
from mmrl.api.tasks.image_sources import SPLIT_SHARES, split_of
from mmrl.api.tasks.option_checks import check_choice, check_split, check_type
from mmrl.api.tasks.table_splits import own_test
from mmrl.api.tasks.tables import DataTable, LazyItems, read_table, resolve_image
from mmrl_transit.network import Lines, best_route, cost, fold
from mmrl_transit.task import STYLES, asked, sections, thought, trip

MARKS = (" (Transfer Station)", " (Branch-starting Station)", "（换乘站）", "（支线起始站）")
"""Marks after a station's name in the networks of ReasonMap."""
ORDER = ("TorF1", "TorF2", "Counting2", "Counting3", "Counting1", "planning")
"""From easy to hard, as in RewardMap's training."""
CITIES = ("easy", "middle", "hard")
QUESTIONS = ("question", "question_short")
"""Columns of a plan's question: of RewardMap's rows, and of ReasonMap's own, which are all plans and have no `type`."""


@dataclass(kw_only=True, eq=False)
class Rows(Task):
    """Maps and questions from a table."""

    path: str
    """A `.jsonl`, `.json`, `.csv` or `.parquet` file, a folder of `datasets`, or a data set's name on the Hub."""
    test_path: str | None = None
    """Another table for the split test; by default about 30% of the maps, each with all its questions."""
    images: str | None = None
    """The folder of relative paths of pictures and networks; by default the table's own."""
    style: str = "short"
    """short, tags, plain or rewardmap, see `transit/plan`. With rewardmap the row's own question is used unchanged."""
    kinds: Sequence[str] = field(default_factory=list)
    """Use only rows of these types: TorF1, TorF2, Counting1, Counting2, Counting3, planning; by default all."""
    seed: int = 0
    """Seed of the splits of a single table."""

    splits = ("train", "test")

    def __post_init__(self) -> None:
        check_choice("style", self.style, STYLES)
        check_type("seed", self.seed, int)
        for option in ("path", "test_path", "images"):
            if option == "path" or getattr(self, option) is not None:
                check_type(option, getattr(self, option), str)
        if not isinstance(self.kinds, list | tuple):
            raise UserError(f"kinds = {self.kinds!r:.200} must be a list such as ['TorF1', 'planning']")
        for kind in self.kinds:
            check_choice("kinds", kind, ORDER)
        train = read_table(self.path)
        test = own_test(self.path, train) if self.test_path is None else read_table(self.test_path, split="test")
        self._tables = {"train": train, "test": test}

    def prompts(self, split: str, seed: int) -> LazyItems[Prompt]:
        check_split(split, self.splits)
        table = self._tables[split]
        path = self.test_path or self.path if split == "test" else self.path
        one = self.test_path is None and self._tables["train"].name == self._tables["test"].name
        chosen: Sequence[int] = range(len(table))
        if one:
            chosen = array("Q", (i for i, key in enumerate(_maps(table)) if split_of(key, self.seed, SPLIT_SHARES) == split))
        if not chosen and len(table):
            count = len(set(_maps(table)))
            why = f"all {len(table)} rows show one figure" if count == 1 else f"all its {count} figures fall to the other one"
            raise UserError(
                f"split {split!r} of {display_path(path)} is empty: all questions of a map are in one split, "
                f"and {why}: give more maps, another seed or a test_path"
            )
        if self.kinds:
            kinds = array("B", (row is None or _type(row) in self.kinds for row in table.scan(("type", *QUESTIONS))))
            chosen = array("Q", (i for i in chosen if kinds[i]))
        if not chosen:
            raise UserError(f"split {split!r} of {display_path(path)} is empty: give more rows, other kinds, or a test_path")
        return LazyItems(table, lambda row, number: self._prompt(f"{split}-{number}", path, row), chosen)

    def gold(self, prompt: Prompt) -> str:
        answer = prompt.meta["solution"]
        if self.style == "rewardmap":
            return sections(answer) if prompt.meta["type"] == "planning" else f"\\boxed{{{answer}}}"
        text = answer if self.style == "plain" else f"<answer>{answer}</answer>"
        return f"<think>{prompt.meta['thought']}</think>\n{text}" if self.style == "tags" else text

    def _prompt(self, id: str, path: str, row: Mapping[str, Any]) -> Prompt:
        kind, city = _type(row) or row["type"], row["difficulty_city"]
        check_choice("type", kind, ORDER)
        check_choice("difficulty_city", city, CITIES)
        start, end = _text(row, "station_1", kind), _text(row, "station_2", kind)
        meta: dict[str, Any] = {
            **{"type": kind, "difficulty_city": city, "style": self.style, "station1": start, "station2": end},
            "difficulty": ORDER.index(kind) + CITIES.index(city) / 10,
            "metro_data": {},
            "question_transfer_count": _transfers(row) or 0,
            "thought": "I look at the map.",
        }
        if kind == "planning" or row.get("metro_data") or row.get("json"):
            meta["metro_data"] = _network(row, path, self.images)
        if kind == "planning":
            asks = next((row[key] for key in QUESTIONS if key in row), None)
            text = asks if self.style == "rewardmap" else trip(start, end, self.style)
            answer: Any = None
            self._solve(meta, start, end)
            if _transfers(row) is None:
                meta["question_transfer_count"] = meta["best"][0]
            answer = None if self.style == "rewardmap" else meta["solution"]
        else:
            truth, meta["solution"], choices = _truth(kind, row["answer"])
            text = row["question"] if self.style == "rewardmap" else f"{row['question']}\n{asked(choices, self.style)}"
            answer = truth if self.style == "rewardmap" else meta["solution"]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"question = {text!r:.60} must be a text")
        return Prompt(
            id=id, messages=[user_message(text, resolve_image(path, row["figure"], self.images))], answer=answer, meta=meta
        )

    def _solve(self, meta: dict[str, Any], start: str, end: str) -> None:
        """The best route, by the names that the network has."""
        lines: Lines = meta["metro_data"]
        names = {fold(s): s for stops in lines.values() for s in stops}
        for station in (start, end):
            if fold(station) not in names:
                raise ValueError(f"station {station!r:.60} is on no line")
        start, end = names[fold(start)], names[fold(end)]
        route = best_route(lines, start, end) if start != end else None
        if not route:
            raise ValueError(f"no route leads from {start!r:.60} to {end!r:.60}")
        meta.update(
            station1=start, station2=end, best=cost(lines, route), solution="; ".join(map(str, route)), thought=thought(route)
        )


def _maps(table: DataTable) -> Iterator[str]:
    """The key of each row's map, so that all questions of a map are in one split; the row's number if it names no map."""
    for number, row in enumerate(table.scan(("figure",))):
        figure = None if row is None else row.get("figure")
        if isinstance(figure, bytes):  # a picture in the table
            figure = hashlib.sha256(figure).hexdigest()
        yield figure if isinstance(figure, str) else f"row {number}"


def _truth(kind: str, answer: Any) -> tuple[int, str, tuple[str, ...]]:
    """(the answer as a whole number, in words, the possible answers) of a question."""
    try:
        number = int(answer)
    except (TypeError, ValueError):
        raise ValueError(
            f"answer = {answer!r:.60} must be a whole number: 1 or 0 for yes or no, 0 to 3 for A to D, or a count"
        ) from None
    most = {"TorF1": 1, "TorF2": 1, "Counting1": 3}.get(kind, 10_000)
    if (isinstance(answer, float) and number != answer) or not 0 <= number <= most:
        raise ValueError(f"answer = {answer!r:.60} must be a whole number from 0 to {most} for the type {kind}")
    if kind.startswith("TorF"):
        return number, "yes" if number else "no", ("yes", "no")
    return (number, "ABCD"[number], tuple("ABCD")) if kind == "Counting1" else (number, str(number), ())


def _transfers(row: Mapping[str, Any]) -> int | None:
    """A row's number of transfers, in CSV a text; None where it is unset."""
    value = row.get("question_transfer_count")
    if value in (None, ""):
        return None
    if not str(value).isdecimal():
        raise ValueError(f"question_transfer_count = {value!r:.60} must be a whole number from 0")
    return int(value)


def _network(row: Mapping[str, Any], path: str, folder: str | None) -> dict[str, list[str]]:
    """The lines of a row: `metro_data` or `json` in the row, as an object or as JSON, or the file that `json` names."""
    found = row["json"] if row.get("metro_data") is None else row["metro_data"]
    if isinstance(found, str):
        inside = row.get("metro_data") is not None or found.lstrip().startswith("{")
        found = json.loads(found) if inside else _file(str(resolve_image(path, found, folder)))
    if (
        not isinstance(found, Mapping)
        or not found
        or not all(
            isinstance(stops, list) and len(stops) > 1 and all(isinstance(s, str) and s.strip() for s in stops)
            for stops in found.values()
        )
    ):
        raise ValueError("metro_data must be an object of lines, each with a list of two stations or more")
    return {str(line): [_unmarked(s) for s in stops] for line, stops in found.items()}


def _type(row: Mapping[str, Any]) -> Any:
    """A row's type; None without one."""
    return row.get("type", "planning" if QUESTIONS[1] in row else None)


@functools.lru_cache(maxsize=64)
def _file(path: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"the network {display_path(path)} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"the network {display_path(path)} is no JSON") from None


def _unmarked(station: str) -> str:
    for mark in MARKS:
        station = station.replace(mark, "")
    return station


def _text(row: Mapping[str, Any], key: str, kind: str) -> str:
    """A station of a row; empty for a question without one, since only plans need stations."""
    value = row[key] if kind == "planning" else row.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"{key} = {value!r:.60} must be a text")
    return value

"""Search of a run's rollouts by step, task, status, source, reward and words. Results are groups."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mmrl.run_folder.bounded import LINE, Budget
from mmrl.run_folder.files import open_regular_file
from mmrl.run_folder.validated import parsed
from mmrl.ui.report import alarms
from mmrl.ui.report.alarms import Alarm

SORTS = ("newest", "oldest", "best", "worst")
STATUSES = ("finished", "truncated", "failed")
"""Statuses to filter by, besides a rollout's own ones: `truncated` is any limit, `failed` is a failed score."""
SCANNED = 4000
"""Maximal rollouts that are scanned for one page of groups."""
MEMBERS = 1024
"""Maximal rollouts of a group that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Filters and order of a search. An empty field does not filter."""

    step: int | None = None
    task: str = ""
    status: str = ""
    source: str = ""
    low: float | None = None
    """Lowest reward."""
    high: float | None = None
    """Highest reward."""
    q: str = ""
    """Words that must all occur in a rollout; the last one may be a prefix."""
    prompt: str = ""
    """Id of a prompt."""
    sort: str = "newest"
    """One of `SORTS`."""
    after: str = ""
    """Cursor at the end of the previous page, from `Found.after`."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Wanted:
        """The search of a form's fields; invalid values do not filter."""
        known: dict[str, Any] = {}
        for field in fields(cls):
            text = given.get(field.name, "").strip()[:500]
            if not text:
                continue
            if field.name == "step":
                known["step"] = int(text) if re.fullmatch(r"\d{1,12}", text) else -1
            elif field.name in ("low", "high"):
                if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", text, re.IGNORECASE):
                    known[field.name] = float(text)
            elif field.name != "sort" or text in SORTS:
                known[field.name] = text
        return cls(**known)

    @property
    def narrow(self) -> bool:
        """Whether any filter is set."""
        return any(getattr(self, f.name) not in ("", None) for f in fields(self) if f.name not in ("sort", "after"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A page of results."""

    groups: list[tuple[int, int | None, str]]
    """(step, group, task) of groups with a matching rollout, in order."""
    hits: set[tuple[int, int]]
    """(step, line) of the matching rollouts of these groups."""
    after: str
    """Cursor of the next page; empty on the last page."""


def search(db: sqlite3.Connection, wanted: Wanted, limit: int) -> Found:
    """A page of at most `limit` groups with matching rollouts. A group of an earlier page comes again only in a search for
    words, where to look for it would take too long."""
    where, values = _conditions(wanted)
    column, down = {"newest": ("step", True), "oldest": ("step", False)}.get(wanted.sort, ("reward", wanted.sort == "best"))
    if column == "reward":
        where.append("reward IS NOT NULL")
    after, earlier = _cursor(wanted.after), ""
    if after:
        sign = "<" if down else ">"
        later = f"({column} {sign} ? OR ({column} = ? AND (step < ? OR (step = ? AND line > ?))))"
        of_group = ("step = ?", "grp IS ?", "task = ?")
        if not wanted.q:
            earlier = f"SELECT 1 FROM rollouts WHERE {' AND '.join([*of_group, *where, f'NOT {later}'])} LIMIT 1"
        where.append(later)
        values += [after[0], after[0], after[1], after[1], after[2]]
    order = f"{column} {'DESC' if down else 'ASC'}, step DESC, line"
    chosen = " AND ".join(where) or "1"
    text = f"SELECT {column}, step, line, grp, task FROM rollouts WHERE {chosen} ORDER BY {order} LIMIT {SCANNED}"
    groups: dict[tuple[int, int | None, str], None] = {}
    before: dict[tuple[int, int | None, str], bool] = {}
    hits: set[tuple[int, int]] = set()
    last, full, seen = None, False, 0
    for value, step, line, group, task in db.execute(text, values):
        key = (step, group, task)
        if key not in before:
            before[key] = bool(earlier) and db.execute(earlier, (*key, *values)).fetchone() is not None
        if not before[key]:
            if key not in groups and len(groups) == limit:
                full = True
                break
            groups[key] = None
            hits.add((step, line))
        last, seen = (value, step, line), seen + 1
    more = last is not None and (full or seen == SCANNED)
    return Found(groups=list(groups), hits=hits, after=json.dumps(last) if more else "")


def count(db: sqlite3.Connection, wanted: Wanted) -> int:
    """The number of matching rollouts."""
    where, values = _conditions(wanted)
    number: int = db.execute(f"SELECT count(*) FROM rollouts WHERE {' AND '.join(where) or '1'}", values).fetchone()[0]
    return number


def _conditions(wanted: Wanted) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    values: list[Any] = []
    for column, value in (("step", wanted.step), ("task", wanted.task), ("source", wanted.source), ("prompt", wanted.prompt)):
        if value not in ("", None):
            where.append(f"{column} = ?")
            values.append(value)
    if wanted.status == "failed":
        where.append("failed = 1")
    elif wanted.status == "truncated":
        where.append("status LIKE 'truncated-%'")
    elif wanted.status:
        where.append("status = ?")
        values.append(wanted.status)
    for sign, bound in ((">=", wanted.low), ("<=", wanted.high)):
        if bound is not None:
            where.append(f"reward {sign} ?")
            values.append(bound)
    if wanted.q:
        where.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(query(wanted.q))
    return where, values


WORD = re.compile(r"[^\W_\u19b0-\u19c9]+")
"""What FTS5 takes for one word. It takes `a_b` for two, and Unicode made signs of New Tai Lue letters after it. A word that it
splits is a phrase, which this index can't search for."""


def query(text: str) -> str:
    """Typed text as an FTS5 query for all its words, quoted so that none is an operator; the last word is a prefix."""
    words = WORD.findall(text)
    return " ".join(f'"{word}"*' if word == words[-1] else f'"{word}"' for word in words) or '""'


def _cursor(text: str) -> list[float] | None:
    try:
        data = json.loads(text) if text else None
    except ValueError:
        return None
    valid = isinstance(data, list) and len(data) == 3 and all(isinstance(v, int | float) and abs(v) < 1 << 53 for v in data)
    return data if valid else None


def members(
    db: sqlite3.Connection, run: Path, group: tuple[int, int | None, str], budget: Budget
) -> list[tuple[int, dict[str, Any]]]:
    """(line, row) of a group's first `MEMBERS` rollouts; rows that have vanished since indexing, or don't fit into the budget of
    the page, are left out."""
    step, number, task = group
    places = db.execute(
        "SELECT line, offset, length FROM rollouts WHERE step = ? AND grp IS ? AND task = ? ORDER BY line LIMIT ?",
        (step, number, task, MEMBERS),
    ).fetchall()
    return rows_at(run, step, places, budget)


def witnesses(db: sqlite3.Connection, run: Path, alarm: Alarm, budget: Budget) -> list[list[tuple[int, dict[str, Any]]]]:
    """The groups that show an alarm, as `members` gives them."""
    step = 0

    def rows_of(of: int) -> list[dict[str, Any]]:
        nonlocal step
        step = of
        text = (
            "SELECT task, grp, tokens, reward, advantage, said, failed FROM rollouts "
            "WHERE step = ? AND (? = '' OR task = ?) ORDER BY line LIMIT ?"
        )
        names = ("task", "group", "tokens", "reward", "advantage", "completion")
        return [
            {**dict(zip(names, row, strict=True)), "score": {"status": "failed" if failed else "ok"}}
            for *row, failed in db.execute(text, (of, alarm.task, alarm.task, SCANNED))
        ]

    chosen = alarms.witnesses(alarm, steps(db), rows_of)
    return [found for task, group in chosen if (found := members(db, run, (step, group, task), budget))]


def rows_at(run: Path, step: int, places: Sequence[tuple[int, int, int]], budget: Budget) -> list[tuple[int, dict[str, Any]]]:
    """(line, row) of a step's file at these places: (line, byte offset, length in bytes). Unreadable rows are left out."""
    rows = []
    try:
        with open_regular_file(run / "rollouts" / f"step-{step:06d}.jsonl") as file:
            for line, offset, length in places:
                file.seek(offset)
                data = file.read(min(length, LINE))
                if budget.take(data) and (row := parsed(data)) is not None and row.get("step") == step:
                    rows.append((line, row))
    except FileNotFoundError:
        return []
    return rows


def tasks(db: sqlite3.Connection) -> list[str]:
    return [task for (task,) in db.execute("SELECT DISTINCT task FROM rollouts ORDER BY task")]


def steps(db: sqlite3.Connection) -> list[int]:
    """The steps whose rollouts are indexed."""
    return [step for (step,) in db.execute("SELECT step FROM files ORDER BY step")]

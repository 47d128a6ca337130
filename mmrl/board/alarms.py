"""What went wrong or looked wrong in a run: each alarm once, with when, and the rollouts that show why."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl.board import search
from mmrl.board.state import ENDED

_LIMIT = re.compile(r"\((?:limits\.(\w+)\.\w+|judge\.(failure_limit)) = ")
WAYS: Mapping[str, tuple[str, str, str]] = {
    "answer_collapse": ("Different prompts are answered alike", "", "tokens ASC"),
    "length_growth": ("Completions have grown", "", "tokens DESC"),
    "entropy_fall": ("The policy tries nothing else any more", "", "advantage IS NULL DESC"),
    "clip_share": ("Most of the update is clipped away", "", "abs(coalesce(advantage, 0)) DESC"),
    "zero_spread": ("Groups teach nothing: all their completions earn the same", "coalesce(advantage, 0) = 0", "reward DESC"),
    "blind": ("It answers as well without the picture", "reward IS NOT NULL", "reward DESC"),
    "reward_hacking": ("The reward rises while the held-out figure falls", "reward IS NOT NULL", "reward DESC"),
    "logprob_gap": ("Sampler and learner disagree", "", "abs(coalesce(advantage, 0)) DESC"),
    "failure_limit": ("Scores failed", "failed = 1", "line"),
}
"""Alarm -> what it means, and which rollouts show it: a condition and an order, of `rollouts` in the index."""
SHOWN = 3
"""Groups for each alarm."""


@dataclass(slots=True)
class Alarm:
    """What was told, once or many times."""

    name: str
    """Of the limit; empty for what is none."""
    title: str
    kind: str
    """`alarm`, `fault` for what ended the run, or `warning`."""
    place: str
    what: str
    """As it was told first."""
    steps: list[int] = field(default_factory=list)
    groups: list[tuple[int, int | None, str]] = field(default_factory=list)
    """(step, group, task) of rollouts that show it."""


def alarms(rows: Sequence[Mapping[str, Any]]) -> list[Alarm]:
    """The rows of `errors.jsonl`, alike ones together: what ended the run first, then the alarms, then the rest."""
    found: dict[tuple[str, str], Alarm] = {}
    for row in rows:
        place, what = str(row.get("where")), str(row.get("what"))
        match = _LIMIT.search(what)
        name = (match[1] or match[2]) if match else ""
        kind = "fault" if place == ENDED else "alarm" if name else "warning"
        title = WAYS[name][0] if name in WAYS else "What ended the run" if kind == "fault" else place
        key = (name, place) if name else (re.sub(r"\d+", "0", what), "" if kind == "warning" else place)
        alarm = found.setdefault(key, Alarm(name, title, kind, place, what))
        if isinstance(row.get("step"), int):
            alarm.steps.append(row["step"])
    order = ("fault", "alarm", "warning")
    return sorted(found.values(), key=lambda one: (order.index(one.kind), one.steps[:1]))


def witnesses(db: sqlite3.Connection, alarm: Alarm) -> list[tuple[int, int | None, str]]:
    """The groups that show an alarm: of the recorded step at it or nearest before it, else after it."""
    if alarm.name not in WAYS or not alarm.steps:
        return []
    _, condition, order = WAYS[alarm.name]
    at = alarm.steps[0]
    fits = f"AND {condition}" if condition else ""
    near = db.execute(
        f"SELECT step FROM (SELECT DISTINCT step FROM rollouts WHERE 1 {fits}) ORDER BY step > ?, abs(step - ?) LIMIT 1", (at, at)
    ).fetchone()
    if near is None:
        return []
    rows = db.execute(f"SELECT step, grp, task FROM rollouts WHERE step = ? {fits} ORDER BY {order} LIMIT 200", near)
    return list(dict.fromkeys(rows))[:SHOWN]


def shown(db: sqlite3.Connection, run: Path, alarm: Alarm) -> list[list[tuple[int, dict[str, Any]]]]:
    """The rollouts of these groups."""
    alarm.groups = witnesses(db, alarm)
    return [found for group in alarm.groups if (found := search.members(db, run, group))]

"""What a smoke run showed, for people: of the update of each stage, and of the figures that its `smoke_shows` names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmrl.run_folder.reader import RunData, read_jsonl

SIGNS = {">": operator.gt, "<": operator.lt, "!=": operator.ne}


def told(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each stage. stages: those of `SmokeProof.seen`."""
    return [f"stage {found['stage']} ({found['kind']}): {told_update(found)}" for found in stages]


def told_update(found: Mapping[str, Any]) -> str:
    """What is known of the update of a stage."""
    if found["step"] is None:
        return f"no step showed an update: {found['why'] or 'none was run'}"
    changed = f"{100 * found['moved_share']:.3g}% of the weights, by at most {found['moved']:.1e}"
    said = f"the update works: step {found['step']} changed {changed} (loss {found['loss']:.3g})"
    of = f"{found['groups']} groups"
    if found["gold"]:
        said += f"; gold completions took the place of some in {found['gold']} of {of}, so that rewards differed"
    if found["drawn"]:
        said += f"; {found['drawn']} of {of} got invented rewards, as all completions had scored the same: "
        said += "the task's own reward was not tested"
    return said


def unproved(stages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a stage showed no update."""
    return any(found["step"] is None for found in stages)


class Seen(NamedTuple):
    """What became of an entry of `smoke_shows`."""

    said: str
    value: float | None
    """The first figure that is as the entry says; None if none is."""
    exists: bool
    """Whether there is a figure of that name."""


def figures(run: RunData, read: Callable[[Path], Sequence[Mapping[str, Any]]] = read_jsonl) -> list[Mapping[str, Any]]:
    """What `smoke_shows` may name: the metrics of each step, the parts of the reward of each recorded rollout, gold ones among
    them, as `part NAME`, and `moved_share` of each stage. read: gives the rows of a file of rollouts."""
    scores = [row.get("score") or {} for file in run.rollout_files for row in read(file)]
    parts = [{f"part {name}": value for name, value in score.get("parts", {}).items()} for score in scores]
    return [*(row["metrics"] for row in run.steps), *parts, *(run.summary or {}).get("smoke", [])]


def seen(said: str, found: Sequence[Mapping[str, Any]]) -> Seen:
    """Look for a figure that is as an entry of `smoke_shows` says. found: those of `figures`."""
    name, sign, bound = said.rsplit(" ", 2)
    values = [figure[name] for figure in found if name in figure]
    numbers = (value for value in values if isinstance(value, int | float))  # None: it wasn't finite
    return Seen(said, next((value for value in numbers if SIGNS[sign](value, float(bound))), None), bool(values))


def told_shown(entries: Sequence[str], run: RunData) -> list[str]:
    """A line for those entries of `smoke_shows` that were shown, and one for those that weren't."""
    found = figures(run)
    each = [seen(said, found) for said in entries]
    there = [f"{one.said} ({one.value:.3g})" for one in each if one.value is not None]
    lacking = [one.said if one.exists else f"{one.said} (no such figure)" for one in each if one.value is None]
    return [
        f"{how}: {', '.join(some)}"
        for how, some in (("smoke_shows held", there), ("smoke_shows held in no step", lacking))
        if some
    ]

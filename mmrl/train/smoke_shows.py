"""What a smoke run shows of what it is for: the figures that its `smoke_shows` names."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.run_folder.reader import RunData, read_jsonl

SIGNS = {">": operator.gt, "<": operator.lt, "!=": operator.ne}


def figures(run: RunData) -> list[Mapping[str, Any]]:
    """What `smoke_shows` may name: the metrics of each step, the parts of the reward of each recorded rollout, gold ones among
    them, as `part NAME`, and `moved_share` of each stage."""
    rollouts = [row for file in run.rollout_files for row in read_jsonl(file)]
    parts = [{f"part {name}": value for name, value in row["score"]["parts"].items()} for row in rollouts]
    return [*(row["metrics"] for row in run.steps), *parts, *(run.summary or {}).get("smoke", [])]


def shown(said: str, found: Sequence[Mapping[str, Any]]) -> float | None:
    """The first figure that is as an entry of `smoke_shows` says; None if none is."""
    name, sign, bound = said.rsplit(" ", 2)
    values = (figure[name] for figure in found if figure.get(name) is not None)  # null: it wasn't finite
    return next((value for value in values if SIGNS[sign](value, float(bound))), None)


def _is_there(said: str, found: Sequence[Mapping[str, Any]]) -> bool:
    name = said.rsplit(" ", 2)[0]
    return any(name in figure for figure in found)


def told_shown(entries: Sequence[str], run: RunData) -> list[str]:
    """For people: a line for those entries of `smoke_shows` that were shown, and one for those that weren't."""
    found = figures(run)
    values = {said: shown(said, found) for said in entries}
    there = [f"{said} ({value:.3g})" for said, value in values.items() if value is not None]
    lacking = [said if _is_there(said, found) else f"{said} (no such figure)" for said, value in values.items() if value is None]
    return [f"{how}: {', '.join(some)}" for how, some in (("shown", there), ("not shown by any step", lacking)) if some]

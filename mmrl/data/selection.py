"""Select the prompts of a split on which a stage trains, by their scores in an evaluation."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl.api.errors import PluginError, UserError, display_path, is_finite
from mmrl.api.seeds import derive
from mmrl.api.tasks.tables import read_table
from mmrl.api.types import Prompt
from mmrl.config.sections import SelectConfig
from mmrl.data.prompts import Indexable, prompt_at


@dataclass(frozen=True)
class Subset:
    """Some of a task's items."""

    items: Indexable
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int, /) -> Prompt:
        return self.items[self.numbers[index]]


def selected(items: Indexable, rule: SelectConfig, label: str, split: str, seed: int) -> list[int]:
    """The sorted indices of a split's prompts that a stage's rule takes. items: the split.

    Raises UserError if the evaluation can't be used, or if no prompt is left.
    """
    return _numbers(items, label, set(select_ids(rule, label, split, seed)), rule.path)


def select_ids(rule: SelectConfig, label: str, split: str, seed: int) -> list[str]:
    """The ids of a task's prompts that a rule takes. Raises UserError if there are none."""
    scores = read_scores(rule.path, label, split)
    if ids := apply_rule(scores, rule, derive(seed, "select", label)):
        return ids
    varied = ", or give an evaluation with evaluate.num_samples above 1, whose scores vary" if rule.rule == "variance" else ""
    raise UserError(
        f"select leaves none of the {len(scores)} prompts of task {label!r} in {display_path(rule.path)}: widen it{varied}"
    )


def read_scores(path: str, label: str, split: str) -> dict[str, list[float]]:
    """Prompt's id -> scores of its answers that didn't fail, from a file of a run's `evaluations/`.

    Raises UserError if it isn't such a file, or has no row of this task and split.
    """
    if Path(path).suffix != ".jsonl":
        raise UserError(
            f"select.path = {display_path(path)!r} is no .jsonl: give a file of a run, such as evaluations/step-000000.jsonl"
        )
    rows = read_table(path)
    found: dict[str, list[float]] = {}
    others: set[str] = set()
    for i in range(len(rows)):
        row = rows[i]
        id, values = row.get("id"), row.get("values")
        if not isinstance(id, str) or not isinstance(values, list) or not all(v is None or is_finite(v) for v in values):
            raise UserError(f"{rows.location(i)} has no id and values of an evaluation: give a file of a run's evaluations/")
        if (row.get("task"), row.get("split")) != (label, split):
            others.add(f"{row.get('task')} on {row.get('split')}")
            continue
        if id in found:
            raise UserError(f"{rows.location(i)} has the prompt {id!r:.80} of task {label!r} again: give one evaluation")
        found[id] = [float(v) for v in values if v is not None]
    if not found:
        there = ", ".join(sorted(others))[:200] or "none"
        raise UserError(
            f"{display_path(path)} has no prompt of task {label!r} on split {split!r}, only {there}: evaluate that split"
        )
    return found


def apply_rule(scores: Mapping[str, Sequence[float]], rule: SelectConfig, seed: int) -> list[str]:
    """The ids that a rule takes, at most `rule.max_prompts`. Prompts without scores are always left out.

    `variance`: prompts whose scores vary most, none whose scores are all the same (Li et al., Temporal-R1). `bell`: drawn without
    replacement, in proportion to exp(-(mean - center)^2 / (2 width^2)) (Wang et al., Time-R1). `all`: drawn uniformly. The order
    of equals is random. scores: id -> scores of its answers.
    """
    means = {id: statistics.fmean(values) for id, values in scores.items() if values}
    left = [id for id, mean in means.items() if _within(mean, rule)]
    draws = {id: random.Random(derive(seed, id)) for id in left}
    if rule.rule == "variance":
        spread = {id: statistics.pvariance(scores[id]) for id in left}
        order = sorted((id for id in left if spread[id]), key=lambda id: (-spread[id], draws[id].random()))
    else:
        # the first n of exponential times with rates w are a draw without replacement (Efraimidis and Spirakis 2006);
        # in logarithms, since rates far from the center underflow
        width = rule.width if rule.rule == "bell" else math.inf
        log_rates = {id: -((means[id] - rule.center) ** 2) / (2 * width**2) for id in left}
        order = sorted(left, key=lambda id: math.log(draws[id].expovariate(1.0) or math.ulp(0.0)) - log_rates[id])
    return order[: rule.max_prompts]


def _within(mean: float, rule: SelectConfig) -> bool:
    return (rule.above is None or mean > rule.above) and (rule.up_to is None or mean <= rule.up_to)


def _numbers(items: Indexable, label: str, ids: set[str], path: str) -> list[int]:
    """The indices of the items with these ids; reads items until all are found and skips those that the task can't open."""
    found: dict[str, int] = {}
    broken = 0
    for i in range(len(items)):
        if len(found) == len(ids):
            break
        try:
            id = prompt_at(items, i, label).id
        except PluginError:
            raise
        except UserError:
            broken += 1
            continue
        if id in ids:
            found.setdefault(id, i)
    gone = sorted(ids - found.keys())
    if len(gone) > broken:
        what = f"{len(gone)} prompts that task {label!r} doesn't have, such as {gone[0]!r:.80}"
        raise UserError(f"{display_path(path)} has {what}: evaluate the task with its present options")
    if not found:
        raise UserError(f"none of the prompts of task {label!r} that select takes can be opened: check its data")
    return sorted(found.values())

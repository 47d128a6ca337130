"""Greedy answers to held-out prompts, with a confidence interval."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from mmrl import plugins
from mmrl.collect.turns import TurnCollector
from mmrl.config import RunConfig
from mmrl.data.seeds import derive
from mmrl.data.source import prompts_of
from mmrl.errors import UserError
from mmrl.generate.local import Sampling
from mmrl.interfaces import Task
from mmrl.judge import Judge, cases_of
from mmrl.types import Case, Rollout, Score, replace

Z = 1.959963984540054
"""Two-sided 95%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One task's figure on one split."""

    task: str
    split: str
    metric: str
    """`accuracy` when every score is 0 or 1, else the verifier's id."""
    value: float
    low: float
    high: float
    """Bounds of the 95% interval: Wilson's for accuracies, otherwise the normal approximation of the
    mean's, within the verifier's range."""
    n: int
    """Prompts that were scored."""
    extra: dict[str, float] = field(default_factory=dict)
    """`truncated_share`, `failed`, and what the task's `summarise` adds."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def wilson(successes: float, n: int, z: float = Z) -> tuple[float, float]:
    """The score interval of a proportion (Wilson 1927): (low, high) within 0..1; (0, 1) when n is 0."""
    if n == 0:
        return 0.0, 1.0
    p, zz = successes / n, z * z / n
    middle = (p + zz / 2) / (1 + zz)
    half = z * math.sqrt(p * (1 - p) / n + zz / (4 * n)) / (1 + zz)
    return max(0.0, middle - half), min(1.0, middle + half)


def metric_of(config: RunConfig, task_id: str) -> str:
    """The verifier that evaluates a task: its own choice, or the first that the run file gives it."""
    entry = next(t for t in config.tasks if t.id == task_id)
    return plugins.registry().get("tasks", task_id).metric or next(iter(entry.verifiers))


def evaluate_task(
    task_id: str, task: Task, config: RunConfig, collector: TurnCollector, judge: Judge
) -> tuple[Evaluation, list[Rollout], list[Score]]:
    """Answer `evaluate.n` prompts of the evaluation split greedily and score them with the task's metric.

    Which prompts is the same for every seed and run, and spread over the split: data are often sorted by class.

    Raises UserError when more scores failed than `judge.failure_limit` allows.
    """
    split, metric = config.evaluate.split, metric_of(config, task_id)
    items = prompts_of(task_id, task, split, config.seed)
    n = min(config.evaluate.n, len(items))
    chosen = random.Random(derive(0, "evaluate", task_id, split)).sample(range(len(items)), n)
    prompts = [items[i] for i in sorted(chosen)]
    rollouts: list[Rollout] = []
    cases: list[Case] = []
    greedy = Sampling(max_tokens=config.generate.max_tokens, temperature=0.0)
    at_once = collector.generator.batch_size
    for start in range(0, len(prompts), at_once):
        chunk = [replace(p, task=task_id) for p in prompts[start : start + at_once]]
        found = collector.collect(chunk, collector.encode(chunk), 1, greedy)
        light = [replace(r, inputs=None) for r in found]  # pixels of a whole split would not fit
        cases += [replace(c, rollout=r) for c, r in zip(cases_of(found), light, strict=True)]
        rollouts += light
    scores = judge.run(metric, cases)
    values = [s.value for s in scores if s.value is not None]
    failed = [s for s in scores if s.failed]
    if len(failed) > config.judge.failure_limit * len(scores) or not values:
        raise UserError(
            f"evaluation of {task_id!r}: {len(failed)} of {len(scores)} scores failed, more than judge.failure_limit = "
            f"{config.judge.failure_limit} allows; the first: {failed[0].detail}"
        )
    binary = all(v in (0.0, 1.0) for v in values)
    mean, n = statistics.fmean(values), len(values)
    if binary:
        low, high = wilson(sum(values), n)
    else:
        spec = plugins.registry().get("verifiers", metric)
        half = Z * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf  # one value says nothing of their spread
        low, high = max(spec.low, mean - half), min(spec.high, mean + half)
    extra = {"truncated_share": sum(r.status.is_truncated for r in rollouts) / len(rollouts), "failed": float(len(scores) - n)}
    extra |= task.summarise([(r.prompt, s.value) for r, s in zip(rollouts, scores, strict=True) if s.value is not None])
    figure = Evaluation(
        task=task_id, split=split, metric="accuracy" if binary else metric, value=mean, low=low, high=high, n=n, extra=extra
    )
    return figure, rollouts, scores

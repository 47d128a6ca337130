"""Greedy answers to held-out prompts, with a confidence interval."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mmrl import plugins
from mmrl.collect.turns import TurnCollector
from mmrl.data.seeds import derive
from mmrl.data.source import Indexable, prompt_at, prompts_of
from mmrl.errors import UserError
from mmrl.generate.local import Sampling
from mmrl.interfaces import Task
from mmrl.intervals import Z, wilson
from mmrl.judge import Judge, cases_of
from mmrl.schema import RunConfig
from mmrl.targets import PluginError, calling
from mmrl.types import Case, Prompt, Score, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One task's figure on one split."""

    task: str
    split: str
    metric: str
    """`accuracy` when every score is 0 or 1 and the verifier's spec doesn't say `graded`, else the verifier's id."""
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


def metric_of(config: RunConfig, task_id: str) -> str:
    """The verifier that evaluates a task: its own choice, unless the run file replaced that one; then the first that it gives."""
    given = next(t for t in config.tasks if t.id == task_id).verifiers
    spec = plugins.registry().get("tasks", task_id)
    replaced = given and spec.metric in spec.verifiers and spec.metric not in given
    return next(iter(given)) if replaced or not spec.metric else spec.metric


class Evaluator:
    """Answers `evaluate.n` held-out prompts of each task greedily and scores them with the task's metric.

    Which prompts is the same for every seed and run, and spread over the split: data are often sorted by class.
    """

    def __init__(self, config: RunConfig, tasks: Mapping[str, Task], collector: TurnCollector, judge: Judge) -> None:
        self.config, self.tasks, self.collector, self.judge = config, tasks, collector, judge
        self._items: dict[str, Indexable] = {}  # a task may make its prompts anew whenever it is asked

    def __call__(self, task_id: str) -> tuple[Evaluation, list[Score]]:
        """One task's figure and its scores. Raises UserError when more of them failed than `judge.failure_limit` allows."""
        cases = [case for prompts in self._chunks(task_id) for case in self._answer(prompts)]
        metric = metric_of(self.config, task_id)
        scores = self.judge.run(metric, cases)
        scored = [(c.rollout.prompt, s.value) for c, s in zip(cases, scores, strict=True) if c.rollout and s.value is not None]
        failed = [s for s in scores if s.failed]
        if len(failed) > self.config.judge.failure_limit * len(scores) or not scored:
            raise UserError(
                f"evaluation of {task_id!r}: {len(failed)} of {len(scores)} scores failed, more than judge.failure_limit = "
                f"{self.config.judge.failure_limit} allows; the first: {failed[0].detail}"
            )
        own = {"truncated_share": sum(c.status.is_truncated for c in cases) / len(cases), "failed": float(len(failed))}
        extra = self._summarise(task_id, scored) | own
        return _figure(task_id, self.config.evaluate.split, metric, [value for _, value in scored], extra), scores

    def _summarise(self, task_id: str, scored: list[tuple[Prompt, float]]) -> dict[str, float]:
        with calling(f"task {task_id!r}: summarise()"):
            figures = dict(self.tasks[task_id].summarise(scored))
        for name, value in figures.items():
            if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
                raise PluginError(f"task {task_id!r}: summarise() must give finite numbers by name, not {name!r}: {value!r:.60}")
        return figures

    def _chunks(self, task_id: str) -> Iterator[list[Prompt]]:
        split = self.config.evaluate.split
        if task_id not in self._items:
            self._items[task_id] = prompts_of(task_id, self.tasks[task_id], split, self.config.seed)
        items = self._items[task_id]
        n = min(self.config.evaluate.n, len(items))
        chosen = sorted(random.Random(derive(0, "evaluate", task_id, split)).sample(range(len(items)), n))
        at_once = self.collector.generator.batch_size
        for start in range(0, n, at_once):
            yield [prompt_at(items, i, task_id) for i in chosen[start : start + at_once]]

    def _answer(self, prompts: list[Prompt]) -> list[Case]:
        greedy = Sampling(max_tokens=self.config.generate.max_tokens, temperature=0.0)
        cases = cases_of(self.collector.collect(prompts, self.collector.encode(prompts), 1, greedy))
        return [replace(c, rollout=replace(c.rollout, inputs=None)) for c in cases]  # pixels of a whole split would not fit


def _figure(task_id: str, split: str, metric: str, values: list[float], extra: dict[str, float]) -> Evaluation:
    """The mean of the values with its interval."""
    spec = plugins.registry().get("verifiers", metric)
    mean, n = statistics.fmean(values), len(values)
    binary = not spec.graded and all(v in (0.0, 1.0) for v in values)
    if binary:
        low, high = wilson(sum(values), n)
    else:
        half = Z * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf  # one value says nothing of their spread
        low, high = max(spec.low, mean - half), min(spec.high, mean + half)
    return Evaluation(
        task=task_id, split=split, metric="accuracy" if binary else metric, value=mean, low=low, high=high, n=n, extra=extra
    )

"""The figures of a task on held-out prompts, with confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from mmrl.api.errors import PluginError, plugin_errors
from mmrl.api.types import Prompt, Score
from mmrl.evaluation.answers import Answering, Evaluated
from mmrl.evaluation.probes.table import probes_of
from mmrl.evaluation.results import (
    Evaluation,
    figure_of,
    known_sets,
    mean_parts,
    outcome_interval,
    parts_by_prompt,
    pass_at_k_metrics,
)
from mmrl.judge import Judge
from mmrl.rollout.collector import Collector
from mmrl.run_folder.episodes import EpisodePicker


class Evaluator(Answering):
    """Evaluates a task on held-out prompts, and runs the probes of `[evaluate]` (`mmrl.evaluation.probes`)."""

    def __init__(
        self, setup: Evaluated, collector: Collector, judge: Judge, shown: Callable[[Prompt], Prompt] = lambda prompt: prompt
    ) -> None:
        """See `Answering`."""
        super().__init__(setup, collector, judge, shown)
        self.probes = probes_of(setup.config)

    def __call__(self, label: str) -> tuple[Evaluation, list[Score]]:
        """One task's figure, and the scores of all answers. Raises LimitReached if more of them failed than `judge.failure_limit`
        allows."""
        self.collector.wake_up()
        settings, spec = self.config.evaluate, self.spec(label)
        watched = EpisodePicker(self.config.record.episodes)
        observer = next((steering for probe in self.probes if (steering := probe.observer())), None)
        known = len(self.heldout.left_out.get(label, ()))
        plain = self.answers(label, watched=watched, steering=observer)
        left_out = [*self.heldout.left_out.get(label, {}).values()]
        prompts, cases, scores, items = plain.prompts, plain.cases, plain.scores, plain.items
        scored = [(p, i.value) for p, i in zip(prompts, items, strict=True) if i.value is not None]
        extra = self._summarised(label, "summarise", scored)
        of_parts = self._summarised(label, "summarise_parts", parts_by_prompt(prompts, scores, settings.num_samples))
        extra |= {f"part/{name}": value for name, value in of_parts.items()} | mean_parts(scores)
        extra["truncated_share"] = sum(c.status.is_truncated for c in cases) / len(cases)
        extra["failed"] = float(sum(s.failed for s in scores))
        extra |= {"left_out": float(len(left_out))} if left_out else {}
        intervals: dict[str, tuple[float, float]] = {}
        for name in sorted({name for item in items for name in item.outcome}):
            have = [item for item in items if name in item.outcome]
            values = [item.outcome[name] for item in have]
            extra[f"episode/{name}"] = statistics.fmean(values)
            intervals[f"episode/{name}"] = outcome_interval(name, values, known_sets(item.set for item in have))
        if settings.num_samples > 1:
            extra |= pass_at_k_metrics(items, spec)
        for probe in self.probes:
            probed = probe(self, label, plain, observer)
            extra |= probed.extra
            intervals |= probed.intervals
        figure = figure_of(label, settings.split, spec, items, extra)
        return replace(
            figure,
            intervals=intervals,
            samples=settings.num_samples,
            temperature=settings.temperature,
            episodes=watched.rows,
            left_out=tuple(left_out[known:]),
        ), scores

    def _summarised(self, label: str, method: Literal["summarise", "summarise_parts"], given: Any) -> dict[str, float]:
        """The figures that a method of the task makes of its own argument."""
        with plugin_errors(f"task {label!r}: {method}()"):
            figures = dict(getattr(self.tasks[label], method)(given))
        for name, value in figures.items():
            if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
                raise PluginError(f"task {label!r}: {method}() must give finite numbers by name, not {name!r}: {value!r:.60}")
        return figures

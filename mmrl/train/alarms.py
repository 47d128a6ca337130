"""Alarms: compare the figures of a run with `[limits]`, to warn or stop. `docs/diagnostics.md` explains each alarm."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

from mmrl.api.alarms import AlarmReading, MetricHistory
from mmrl.api.errors import LimitReached, PluginError, is_finite, plugin_errors
from mmrl.config.sections import Alarm, JudgeConfig, LimitsConfig

FIRST = 5
"""Steps at the beginning of a stage; their mean is the baseline of later steps."""
RECENT = 5
"""Latest steps; their mean is compared, so that one odd step raises no alarm."""
LONG = 10
"""Latest steps of noisier figures: the share of groups without spread, and the reward parts."""
RISE = 0.02
"""Share by which a reward part has to be higher than it was, so that it counts as a rise."""
ROUNDING = 1e-9


class Figure(Protocol):
    """The attributes of `mmrl.evaluation.results.Evaluation` that alarms read."""

    @property
    def task(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def extra(self) -> Mapping[str, float]: ...


@dataclass(slots=True)
class BestFigure:
    """A task's best held-out figure in this stage, or the figure with which the stage began."""

    value: float
    low: float
    """Lower bound of its confidence interval."""
    step: int
    parts: dict[str, float] = field(default_factory=dict)
    """Reward part -> its mean at that time; empty before the stage's first step."""


@dataclass(frozen=True, slots=True)
class AlarmEvent:
    """An alarm: a figure has reached a limit."""

    alarm: str
    """A key of `[limits]`, `failure_limit`, or the id of a plugin's alarm."""
    text: str
    """The message, one line."""
    task: str = ""
    """The task of the figure; empty if it is about all tasks."""
    stop: bool = False
    """Whether the alarm ends the run."""


class AlarmStop(LimitReached):
    """An alarm that ends the run.

    warnings: the other new alarms of that step or evaluation. Tell them first: a resumed run takes them as told."""

    def __init__(self, step: int, event: AlarmEvent, warnings: Sequence[AlarmEvent]) -> None:
        super().__init__(f"step {step}: {event.text}", alarm=event.alarm, task=event.task)
        self.warnings = warnings


@dataclass(frozen=True, slots=True)
class PluginAlarm:
    """An alarm of a plugin, with its options bound and the thresholds of the run file."""

    id: str
    function: Callable[[MetricHistory], AlarmReading | None]
    limit: Alarm

    def read(self, history: MetricHistory) -> AlarmReading | None:
        """What the function finds. Raises PluginError if it fails, or finds something else."""
        with plugin_errors(f"alarm {self.id!r}"):
            found = self.function(history)
        if found is None:
            return None
        if not isinstance(found, AlarmReading):
            raise PluginError(f"alarm {self.id!r} must return an AlarmReading or None, not {type(found).__name__}")
        if not is_finite(found.value) or not all(isinstance(text, str) for text in (found.what, found.cure)):
            raise PluginError(f"alarm {self.id!r} must return a finite value and two texts, not {found!r:.200}")
        return found


class History:
    """The metrics of the current stage. Implements `mmrl.api.alarms.MetricHistory`."""

    def __init__(self) -> None:
        self.first: dict[str, list[float]] = {}
        """Metric -> its first values in this stage, at most `FIRST`."""
        self.latest: dict[str, deque[float]] = {}
        """Metric -> its latest values in this stage, at most `LONG`."""

    def add(self, metrics: Mapping[str, Any]) -> None:
        for key, value in metrics.items():
            if _is_number(value):
                self.latest.setdefault(key, deque(maxlen=LONG)).append(value)
                if len(first := self.first.setdefault(key, [])) < FIRST:
                    first.append(value)

    def recent(self, name: str, steps: int = RECENT, at_least: int | None = None) -> float | None:
        """The mean of a metric's latest values; None if there are fewer than `at_least`, which is `steps` by default."""
        values = list(self.latest.get(name, ()))[-steps:]
        return _mean(values) if len(values) >= (steps if at_least is None else at_least) else None

    def change(self, name: str) -> tuple[float, float] | None:
        """(mean of the first steps, mean of the latest steps); None while these share a step."""
        if len(self.latest.get(name, ())) <= FIRST:
            return None
        return _mean(self.first[name]), _mean(list(self.latest[name])[-RECENT:])

    def parts(self, task: str) -> dict[str, deque[float]]:
        """The latest values of each part of the task's reward; those of all tasks together if the task has none of its own."""
        for prefix in (f"task/{task}/reward/", "reward/"):
            names = [key for key in self.latest if key.startswith(prefix) and key not in ("reward/mean", "reward/std")]
            if names:
                return {key: self.latest[key] for key in names}
        return {}


class AlarmMonitor:
    """Compares each step and each evaluation with `[limits]`.

    `step` and `evaluated` return new alarms, each once per stage (and per task, if it is about a task), and raise AlarmStop
    when a `stop` limit is reached. The alarms depend only on the figures since the stage began and on the last evaluation before
    it.
    """

    def __init__(
        self,
        limits: LimitsConfig,
        judge: JudgeConfig = JudgeConfig(),
        of_plugins: Sequence[PluginAlarm] = (),
        acts: bool = False,
        entropy_dims: Sequence[int] = (),
    ) -> None:
        """acts: the lengths are those of episodes in a simulator, where long ones may be what is rewarded. entropy_dims: of each
        stage, the number of normal distributions whose differential entropies are added up in one `entropy`; 0, and none by
        default, if choices are discrete."""
        self.acts, self.entropy_dims = acts, entropy_dims
        self.limits, self.judge, self.of_plugins = limits, judge, of_plugins
        self.stage: int | None = None
        self.warned: set[tuple[str, str]] = set()
        """(alarm, task) of the warnings given in this stage."""
        self.history = History()
        self.best: dict[str, BestFigure] = {}
        self.last: dict[str, BestFigure] = {}
        """Task -> its latest figure."""

    def step(self, stage_number: int, step: int, metrics: Mapping[str, float]) -> list[AlarmEvent]:
        """The new alarms after a step. metrics: see `docs/run-folder.md` for their names."""
        return _stopping(step, self._after_step(stage_number, metrics))

    def evaluated(self, step: int, figures: Iterable[Figure]) -> list[AlarmEvent]:
        """The new alarms after an evaluation of all tasks. Call it after `step` of the same step."""
        by_task = [self._after_evaluation(step, f.task, (f.low, f.value, f.high), f.extra) for f in figures]
        return _stopping(step, [alarm for alarms in by_task for alarm in alarms])

    def replay(self, rows: Iterable[Mapping[str, Any]], steps: Sequence[int]) -> None:
        """Restore the monitor of a resumed run from the rows of `metrics.jsonl` up to the resumed step. Raises no alarm.

        steps: number of steps of each stage, in order; rows don't contain their stage.
        """
        ends = list(itertools.accumulate(steps))
        for row in rows:
            if "eval" in row:
                figure = row["eval"]
                interval = (figure.get("low"), figure["value"], figure.get("high"))
                self._after_evaluation(row["step"], figure["task"], interval, figure.get("extra", {}))
            else:
                self._after_step(bisect.bisect_left(ends, row["step"]), row["metrics"])

    # -- steps ----------------------------------------------------------------------------------------------------------

    def _after_step(self, stage: int, metrics: Mapping[str, Any]) -> list[AlarmEvent]:
        if stage != self.stage:
            self.stage, self.warned, self.history = stage, set(), History()
            self.best = {task: BestFigure(last.value, last.low, last.step) for task, last in self.last.items()}
        self.history.add(metrics)
        return [
            *self._gap(),
            *self._failures(),
            *self._collapse(),
            *self._length(),
            *self._entropy(),
            *self._clipping(),
            *self._kl(),
            *self._idle(metrics),
            *self._of_plugins(),
        ]

    def _gap(self) -> list[AlarmEvent]:
        """Only the warning: the learner itself stops the run before it trains on a step above the stop limit."""
        warn = self.limits.logprob_gap.warn
        if warn is None or (gap := self.history.recent("logprob_gap", at_least=1)) is None or not _reaches(gap, warn):
            return []
        what = f"sampler and learner disagree by {gap:.3g} nats a token"
        cure = 'check policy.dtype, policy.attn_implementation and the model family, or set importance_sampling = "truncate"'
        if old := self.history.recent("staleness/mean", at_least=1):
            what = f"{what}; their weights are {old:.2g} versions apart"
            cure = "lower learning_rate or compute.staleness, unless the stage's first step has such a gap too"
        return self._once("logprob_gap", f"{what}: {cure} (limits.logprob_gap.warn = {warn:g})")

    def _failures(self) -> list[AlarmEvent]:
        """Warn at half of the share that stops the run."""
        limit, share = self.judge.failure_limit, self.history.recent("judge/failed_share", at_least=1)
        if not share or not _reaches(share, limit / 2):
            return []
        what = f"{share:.0%} of the scores failed; the run stops above judge.failure_limit = {limit:g} of a step's scores"
        return self._once("failure_limit", f"{what}: see errors.jsonl, then fix the verifier or raise judge.timeout_s")

    def _collapse(self) -> list[AlarmEvent]:
        if (share := self.history.recent("answers/most_common_share")) is None:
            return []
        what = f"{share:.0%} of the prompts get the same completion although their answers differ"
        cure = (
            "check whether one answer earns most for any image; lower learning_rate, raise kl_coef or entropy_coef, or balance "
            "the prompts"
        )
        return self._check("answer_collapse", share, what, cure)

    def _length(self) -> list[AlarmEvent]:
        if self.acts or (change := self.history.change("length/mean")) is None or not change[0]:
            return []
        first, now = change
        what = (
            f"completions are {now / first:.3g} times as long as in the stage's first steps ({now:.0f} tokens, then {first:.0f})"
        )
        cure = "read them in the report: if they are padded, set overlong_buffer, raise kl_coef or lower learning_rate"
        return self._check("length_growth", now / first, what, cure)

    def _entropy(self) -> list[AlarmEvent]:
        if (change := self.history.change("entropy")) is None:
            return []
        first, now = change
        if dims := self.entropy_dims[self.stage or 0] if self.entropy_dims else 0:
            fall = 1 - math.exp((now - first) / dims)  # a differential entropy has no zero, so a share of it means nothing
            what = f"the standard deviation of the actions fell by {fall:.0%} since the first steps"
        elif first > 0:
            fall = 1 - now / first
            what = f"the entropy fell by {fall:.0%} since the first steps ({now:.3g} nats a token, then {first:.3g})"
        else:
            return []
        cure = "the policy hardly explores: raise entropy_coef, clip_high or temperature, lower learning_rate, or stop here"
        return self._check("entropy_fall", fall, what, cure)

    def _clipping(self) -> list[AlarmEvent]:
        if (share := self.history.recent("clip_share")) is None:
            return []
        what = f"the loss clips the probability ratio of {share:.0%} of the tokens, which then have no gradient"
        return self._check(
            "clip_share", share, what, "lower learning_rate, epochs or minibatches, or widen the clip range in settings"
        )

    def _kl(self) -> list[AlarmEvent]:
        if (kl := self.history.recent("kl")) is None:
            return []
        what = f"the policy is {kl:.3g} nats a token from its reference, or without one from its weights before the step"
        return self._check("kl", kl, what, "read the rollouts in the report; raise kl_coef, lower learning_rate, or stop here")

    def _idle(self, metrics: Mapping[str, Any]) -> list[AlarmEvent]:
        if (share := self.history.recent("zero_std_share", LONG)) is None:
            return []
        what = f"{LONG} steps in a row taught nothing" if share == 1 else f"{share:.0%} of {LONG} steps' groups taught nothing"
        if (self.history.recent("uncredited_share", LONG, at_least=1) or 0.0) > share / 2:
            what += ": rewards differed, but the algorithm gave no completion credit"
            cure = "read which completions it credits (docs/algorithms.md): grpo-passk only a best one that is alone; or use grpo"
            return self._check("zero_std", share, what, cure)
        what += ": every completion of a prompt scored the same"
        if _is_number(reward := metrics.get("reward/mean")):
            what += f" (reward {reward:.3g} on average)"
        tokens = ""
        if _is_number(cut := metrics.get("length/truncated_share")) and cut > 0.5:
            what += f", and {cut:.0%} were cut off at their longest length (max_tokens)"
            tokens = "more tokens, "
        low = f"{tokens}a warm start (an sft stage), an easier task or other verifiers may help"
        cure = f"read the rollouts in the report; if the reward is low, {low}, if it is high, harder prompts or dynamic_sampling"
        return self._check("zero_std", share, what, cure)

    def _of_plugins(self) -> list[AlarmEvent]:
        found = [(alarm, alarm.read(self.history)) for alarm in self.of_plugins]
        return [
            event
            for alarm, reading in found
            if reading
            for event in self._check(alarm.id, reading.value, reading.what, reading.cure, limit=alarm.limit)
        ]

    # -- evaluations ----------------------------------------------------------------------------------------------------

    def _after_evaluation(self, step: int, task: str, figure: Sequence[Any], extra: Mapping[str, Any]) -> list[AlarmEvent]:
        """figure: the lower bound of its interval, its value, the upper bound; the value replaces a missing bound."""
        value = figure[1]
        if not _is_number(value):
            return []
        low, high = (bound if _is_number(bound) else value for bound in (figure[0], figure[2]))
        found = [*self._blind(task, value, extra.get("blank")), *self._hacking(task, value, high)]
        self.last[task] = BestFigure(value, low, step, {key: _mean(values) for key, values in self.history.parts(task).items()})
        if task not in self.best or value > self.best[task].value:
            self.best[task] = self.last[task]
        return found

    def _blind(self, task: str, value: float, blank: Any) -> list[AlarmEvent]:
        if value <= 0 or not _is_number(blank):
            return []
        what = f"{task}: with blank images the figure is {blank:.3g}, {blank / value:.0%} of the {value:.3g} with the real ones"
        cure = "the policy answers without the images: look for a shortcut in the prompts, or for answers that occur too often"
        return self._check("blind", blank / value, what, cure, task)

    def _hacking(self, task: str, value: float, high: float) -> list[AlarmEvent]:
        """Alarm if a reward part rose since the best figure while the figure fell. A fall doesn't count if either figure lies in
        the other's confidence interval, a rise not if it may be noise."""
        best = self.best.get(task)
        if best is None or value >= best.low or high >= best.value:
            return []
        rises = []
        for key, values in self.history.parts(task).items():
            then, now = best.parts.get(key, _mean(self.history.first[key])), _mean(values)
            if now - then > max(_noise(values), RISE * abs(then), ROUNDING):
                rises.append((now - then, f"{key.partition('reward/')[2]} rose from {then:.3g} to {now:.3g}"))
        if not rises:
            return []
        what = f"{task}: the held-out figure fell from {best.value:.3g} (step {best.step}) to {value:.3g} while " + " and ".join(
            text for _, text in sorted(rises, reverse=True)[:2]
        )
        cure = "read the rollouts that earn most, they may exploit that part; lower its weight, raise kl_coef, or keep the best"
        return self._check("reward_hacking", best.value - value, what, cure, task)

    # -- helpers --------------------------------------------------------------------------------------------------------

    def _check(
        self, alarm: str, value: float, what: str, cure: str, task: str = "", limit: Alarm | None = None
    ) -> list[AlarmEvent]:
        """Compare a value with the thresholds of an alarm. limit: that of a plugin's alarm."""
        key = f'limits.alarms."{alarm}"' if limit else f"limits.{alarm}"
        limit = limit or getattr(self.limits, alarm)
        if limit.stop is not None and _reaches(value, limit.stop):
            text = f"{what}: {cure}; or raise {key}.stop = {limit.stop:g}, and go on with --resume"
            return [AlarmEvent(alarm, text, task, stop=True)]
        if limit.warn is not None and _reaches(value, limit.warn):
            return self._once(alarm, f"{what}: {cure} ({key}.warn = {limit.warn:g})", task)
        return []

    def _once(self, alarm: str, text: str, task: str = "") -> list[AlarmEvent]:
        if (alarm, task) in self.warned:
            return []
        self.warned.add((alarm, task))
        return [AlarmEvent(alarm, text, task)]


def _stopping(step: int, alarms: list[AlarmEvent]) -> list[AlarmEvent]:
    """Return the same alarms. Raises AlarmStop for the first that ends the run."""
    for event in alarms:
        if event.stop:
            raise AlarmStop(step, event, [other for other in alarms if not other.stop])
    return alarms


def _reaches(value: float, limit: float) -> bool:
    return value >= limit - ROUNDING


def _noise(values: Sequence[float]) -> float:
    """Two standard errors of the difference of two means of as many such values."""
    return 2 * statistics.stdev(values) * math.sqrt(2 / len(values)) if len(values) > 1 else 0.0


def _is_number(value: Any) -> TypeGuard[float]:
    """Rows of a run folder contain None for values that were not finite."""
    return isinstance(value, int | float) and math.isfinite(value)


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)

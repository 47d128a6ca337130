"""Answers to held-out prompts, one or several each, with a confidence interval."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mmrl.api.errors import LimitReached, PluginError, calling
from mmrl.api.interfaces import Task
from mmrl.api.seeds import derive
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Case, Prompt, Rollout, Score, replace
from mmrl.compute import ranks
from mmrl.config.sections import RunConfig, TaskConfig
from mmrl.data.altered import blanked, shuffled, with_frames
from mmrl.data.prompts import Splits
from mmrl.evaluation.figures import HELD, Evaluation, Item, _figure, _values, interval_of, parts_of, several
from mmrl.evaluation.heldout import Asked, Heldout
from mmrl.evaluation.paired import compare
from mmrl.evaluation.probes import sparse_to_dense
from mmrl.judge import Judge, cases_of
from mmrl.rollout.collector import Collector
from mmrl.rollout.generate.sampling import Sampling
from mmrl.rollout.generate.steering import Steering
from mmrl.run_folder.episodes import Watched


class Evaluated(Protocol):
    """What an evaluation reads of a `mmrl.train.setup.Setup`. All by task's label."""

    @property
    def config(self) -> RunConfig: ...
    @property
    def tasks(self) -> Mapping[str, Task]: ...
    @property
    def entries(self) -> Mapping[str, TaskConfig]: ...
    @property
    def splits(self) -> Splits: ...
    @property
    def metrics(self) -> Mapping[str, str]:
        """Id of the verifier that evaluates the task."""
        ...

    @property
    def verifiers(self) -> Mapping[str, VerifierSpec]:
        """By such an id."""
        ...


class Evaluator:
    """Answers `evaluate.n` held-out prompts of each task, as `[evaluate]` says, and scores them with the task's metric.

    Which prompts is the same for every seed and run, see `Heldout`. Sampled answers depend on the run's seed alone and not on the
    step, so that an evaluation can be repeated.

    shown: what is done to a prompt before it is answered; verifiers and `summarise` get the prompt as the
    task posed it.
    """

    def __init__(
        self, setup: Evaluated, collector: Collector, judge: Judge, shown: Callable[[Prompt], Prompt] = lambda prompt: prompt
    ) -> None:
        self.setup, self.config, self.tasks = setup, setup.config, setup.tasks
        self.collector, self.judge, self.shown = collector, judge, shown
        self.heldout = Heldout(setup.config.evaluate, setup.splits, collector.encode)

    def __call__(self, label: str) -> tuple[Evaluation, list[Score]]:
        """One task's figure and the scores of all answers. Raises LimitReached when more of them failed than
        `judge.failure_limit` allows."""
        self.collector.wake()
        metric = self.setup.metrics[label]
        spec = self.setup.verifiers[metric]
        watched = Watched(self.config.record.episodes)
        watching = self._steering(learning_rate=0.0)
        known = len(self.heldout.left_out.get(label, ()))
        prompts, cases, scores = self._answered(label, metric, watched=watched, steering=watching)
        left_out = [*self.heldout.left_out.get(label, {}).values()]
        items = self._scored(label, prompts, cases, scores)
        extra = self._summarise(label, [(p, i.value) for p, i in zip(prompts, items, strict=True) if i.value is not None])
        extra |= parts_of(scores)
        extra["truncated_share"] = sum(c.status.is_truncated for c in cases) / len(cases)
        extra["failed"] = float(sum(s.failed for s in scores))
        extra |= {"left_out": float(len(left_out))} if left_out else {}
        outcomes = self._outcomes(cases)
        extra |= {name: statistics.fmean(values) for name, values in outcomes.items()}
        if self.config.evaluate.samples > 1:
            extra |= several(items, spec)
        if self.config.evaluate.blank and any(p.images or p.videos for p in prompts):
            extra["blank"] = self._otherwise(label, metric, "on blanked pictures", blanked)
        if self.config.evaluate.shuffled and any(p.videos for p in prompts):
            seed = self.config.seed
            extra["shuffled"] = self._otherwise(label, metric, "on shuffled videos", lambda prompt: shuffled(prompt, seed))
        if self.config.evaluate.frames and any(p.videos for p in prompts):
            extra |= self._sparse_to_dense(label, metric, spec)
        intervals = {name: interval_of(outcomes[name]) for name in HELD if name in outcomes}
        if watching and any(p.videos for p in prompts):
            extra |= {f"unsteered/{name}": value for name, value in watching.figures().items()}
            extra |= self._steered(label, metric, spec, items, intervals)
        figure = _figure(label, self.config.evaluate.split, spec, metric, items, extra)
        return replace(
            figure,
            intervals=intervals,
            samples=self.config.evaluate.samples,
            temperature=self.config.evaluate.temperature,
            episodes=watched.rows,
            left_out=tuple(left_out[known:]),
        ), scores

    def _otherwise(self, label: str, metric: str, how: str, alter: Callable[[Prompt], Prompt]) -> float:
        """The figure where each prompt is seen otherwise. how: in words."""
        return statistics.fmean(_values(self._scored(label, *self._answered(label, metric, how, alter))))

    def _steering(self, **other: float) -> Steering | None:
        """How videos are answered where `evaluate.steer` says so. other: settings that differ from the run file's."""
        settings = self.config.evaluate
        return Steering(**{**settings.steering.model_dump(), **other}) if settings.steer else None

    def _steered(
        self, label: str, metric: str, spec: VerifierSpec, items: Sequence[Item], intervals: dict[str, tuple[float, float]]
    ) -> dict[str, float]:
        """`steered`, the figure of steered answers, `steered/gain`, what it is above that of the others on the prompts that both
        were scored on, and what was seen of the answers. intervals: gets the bounds of both."""
        steering = self._steering()
        assert steering is not None
        found = self._scored(label, *self._answered(label, metric, "steered", steering=steering))
        figure = _figure(label, self.config.evaluate.split, spec, metric, found, {})
        both = [(a.value, b.value) for a, b in zip(items, found, strict=True) if a.value is not None and b.value is not None]
        intervals["steered"] = figure.low, figure.high
        extra = {"steered": figure.value} | {f"steered/{name}": value for name, value in steering.figures().items()}
        if both:
            gain = compare(*zip(*both, strict=True))
            extra["steered/gain"] = gain.difference
            if math.isfinite(gain.low):  # one graded value says nothing of their spread
                intervals["steered/gain"] = gain.low, gain.high
        return extra

    def _answered(
        self,
        label: str,
        metric: str,
        how: str = "",
        alter: Callable[[Prompt], Prompt] = lambda prompt: prompt,
        watched: Watched | None = None,
        steering: Steering | None = None,
    ) -> tuple[list[Prompt], list[Case], list[Score]]:
        """[P] prompts, [P * k] answers to them and their scores, a prompt's next to each other. alter: what is done to a prompt
        before it is answered, `how` in words. watched: is shown the first answer to each. steering: of answers to videos."""
        entry, settings = self.setup.entries[label], self.config.evaluate
        spec = self.setup.verifiers[metric]
        limit = self.config.generate.max_tokens
        asked: list[Prompt] = []
        own: dict[int, list[Case]] = {}
        at_once = max(1, self.collector.batch_size // settings.samples)
        for some in self.heldout.batches(entry, at_once, lambda prompt: alter(self.shown(prompt)), strict=bool(how)):
            prompts = [one.posed for one in some]
            mine = {len(asked) + k: one for k, one in enumerate(some) if one.mine}
            sampling = Sampling(
                max_tokens=min(entry.max_tokens or limit, limit),
                temperature=settings.temperature,
                seed=derive(self.config.seed, "evaluate", label, len(asked)),
                steering=steering if any(p.videos for p in prompts) else None,
            )
            found = ranks.each(functools.partial(self._collect, mine, sampling))
            if watched:
                watched.see([posed[0] for posed in found.values()], settings.temperature)
            # pixels of a whole split would not fit
            own |= {n: [replace(c, rollout=_light(c.rollout, spec)) for c in cases_of(posed)] for n, posed in found.items()}
            asked += prompts
        judged = ranks.gathered(functools.partial(self._judge, metric, own), _told)
        cases, scores = [c for some, _ in judged for c in some], [s for _, some in judged for s in some]
        self._check_failures(scores, f"evaluation of {label!r}{' ' if how else ''}{how}")
        return asked, cases, scores

    def _collect(self, asked: Mapping[int, Asked], sampling: Sampling) -> dict[int, list[Rollout]]:
        """The answers to each of these prompts, as if to the prompt that its task poses."""
        k, numbers = self.config.evaluate.samples, list(asked)
        shown, read = [one.shown for one in asked.values()], [one.read for one in asked.values()]
        rollouts = self.collector.collect(shown, read, k, sampling, numbers=numbers)
        both = zip(numbers, asked.values(), strict=True)
        return {n: [replace(r, prompt=one.posed) for r in rollouts[i * k : i * k + k]] for i, (n, one) in enumerate(both)}

    def _judge(self, metric: str, cases: Mapping[int, list[Case]]) -> dict[int, tuple[list[Case], list[Score]]]:
        scores = iter(self.judge.run(metric, [c for some in cases.values() for c in some]))
        return {n: (some, [next(scores) for _ in some]) for n, some in cases.items()}

    def _check_failures(self, scores: Sequence[Score], where: str) -> None:
        failed = [s for s in scores if s.failed]
        gone = sum(s.lost for s in failed)  # which says nothing of verifiers
        if len(failed) - gone > self.config.judge.failure_limit * (len(scores) - gone) or len(failed) == len(scores):
            raise LimitReached(
                f"{where}: {len(failed)} of {len(scores)} scores failed, more than judge.failure_limit = "
                f"{self.config.judge.failure_limit} allows; the first: {failed[0].detail}",
                alarm="failure_limit",
            )

    def _sparse_to_dense(self, label: str, metric: str, spec: VerifierSpec) -> dict[str, float]:
        """`sparse_to_dense`, the mean score of the answers that `mmrl.evaluation.probes.sparse_to_dense` decides on, and its
        figures."""
        settings, entry = self.config.evaluate, self.setup.entries[label]
        limit = min(entry.max_tokens or self.config.generate.max_tokens, self.config.generate.max_tokens)

        def ask(prompts: Sequence[Prompt], frames: int, number: int) -> list[Case]:
            seed = derive(self.config.seed, "sparse", label, frames, number)
            how = sparse_to_dense.sampling(number, settings.agree, limit, seed)

            def answered() -> dict[int, Case]:
                cases: dict[int, Case] = {}
                own = [n for n in range(len(prompts)) if ranks.is_mine(n)]
                for start in range(0, len(own), self.collector.batch_size):
                    some = own[start : start + self.collector.batch_size]
                    shown = [with_frames(self.shown(prompts[n]), frames) for n in some]
                    rollouts = self.collector.collect(shown, self.collector.encode(shown), 1, how, numbers=some)
                    posed = [replace(r, prompt=prompts[n]) for n, r in zip(some, rollouts, strict=True)]
                    light = [replace(c, rollout=_light(c.rollout, spec)) for c in cases_of(posed)]
                    cases |= zip(some, light, strict=True)
                return cases

            return ranks.gathered(answered)

        decided = sparse_to_dense.climb(
            self.heldout.prompts(entry), settings.frames, settings.agree, ask, lambda c: self._read(label, c.completion)
        )
        scores = self.judge.run(metric, [one.case for one in decided])
        self._check_failures(scores, f"evaluation of {label!r} from sparse to dense")
        value = statistics.fmean(s.value for s in scores if s.value is not None)
        return {"sparse_to_dense": value} | sparse_to_dense.figures(decided, settings.frames)

    def _scored(self, label: str, prompts: Sequence[Prompt], cases: Sequence[Case], scores: Sequence[Score]) -> list[Item]:
        k, items = self.config.evaluate.samples, []
        for i, prompt in enumerate(prompts):
            values = tuple(s.value for s in scores[i * k : (i + 1) * k])
            known = [v for v in values if v is not None]
            answers = tuple(self._read(label, c.completion) for c in cases[i * k : (i + 1) * k])
            value = statistics.fmean(known) if known else None
            shown = prompt if i < self.config.record.items else None
            completion = cases[i * k].completion
            items.append(Item(id=prompt.id, value=value, values=values, answers=answers, completion=completion, prompt=shown))
        return items

    def _outcomes(self, cases: Sequence[Case]) -> dict[str, list[float]]:
        """`episode/NAME` -> what came of each prompt's episodes in a simulator, on average; nothing where no task acts."""
        k = self.config.evaluate.samples
        asked = [cases[i : i + k] for i in range(0, len(cases), k)]
        names = sorted({name for case in cases for name in case.outcome})
        known = {n: [[c.outcome[n] for c in own if n in c.outcome] for own in asked] for n in names}
        return {f"episode/{n}": [statistics.fmean(values) for values in prompts if values] for n, prompts in known.items()}

    def _read(self, label: str, completion: str) -> str:
        with calling(f"task {label!r}: answer_of()"):
            answer = self.tasks[label].answer_of(completion)
        if not isinstance(answer, str):
            raise PluginError(f"task {label!r}: answer_of() must give text, not {answer!r:.60}")
        return answer

    def _summarise(self, label: str, scored: list[tuple[Prompt, float]]) -> dict[str, float]:
        with calling(f"task {label!r}: summarise()"):
            figures = dict(self.tasks[label].summarise(scored))
        for name, value in figures.items():
            if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
                raise PluginError(f"task {label!r}: summarise() must give finite numbers by name, not {name!r}: {value!r:.60}")
        return figures


def _light(rollout: Rollout | None, spec: VerifierSpec) -> Rollout | None:
    """Without what a verifier doesn't read."""
    track = rollout.track if rollout and spec.rollout else None
    return None if rollout is None else replace(rollout, inputs=None, later=None, track=track)


def _told(judged: tuple[list[Case], list[Score]]) -> tuple[list[Case], list[Score]]:
    """What other ranks are told of a prompt's answers."""
    cases, scores = judged
    return [replace(c, rollout=None, media=()) for c in cases], scores

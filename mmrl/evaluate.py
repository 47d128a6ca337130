"""Answers to held-out prompts, one or several each, with a confidence interval."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mmrl import plugins, ranks, sparse
from mmrl.algorithms.labels import majority
from mmrl.altered import blanked, shuffled, with_frames
from mmrl.collect.collector import Collector
from mmrl.data.heldout import Asked, Heldout
from mmrl.data.seeds import derive
from mmrl.episodes import Watched
from mmrl.errors import UserError
from mmrl.generate.sampling import Sampling
from mmrl.generate.steering import Steering
from mmrl.interfaces import Task
from mmrl.intervals import Z, wilson
from mmrl.judge import Judge, cases_of, lost
from mmrl.paired import compare
from mmrl.schema import RunConfig, TaskConfig
from mmrl.specs import VerifierSpec
from mmrl.targets import PluginError, calling
from mmrl.types import Case, Prompt, Rollout, Score, replace

HELD = ("episode/success", "episode/success_at_end")
"""What an episode in a simulator either reached or didn't."""
SAID = 2000
"""Characters of an answer that are kept of each held-out prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One prompt's answers and what they scored."""

    id: str
    """The prompt's id within its task."""
    value: float | None
    """Mean of the values; None when none of the answers could be scored."""
    values: tuple[float | None, ...]
    """The score of each answer, in the order in which they were sampled; None where the verifier failed."""
    answers: tuple[str, ...]
    """What `Task.answer_of` finds in each."""
    completion: str = ""
    """The first answer as it was written."""
    prompt: Prompt | None = None
    """Where it is kept for people: as the task posed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One task's figure on one split."""

    task: str
    """The entry's label in the run file."""
    split: str
    metric: str
    """`accuracy` when every score is 0 or 1 and the verifier's spec doesn't say `graded`, else the verifier's id."""
    value: float
    """Mean over prompts of the mean over a prompt's answers."""
    low: float
    high: float
    """Bounds of the 95% interval over prompts: Wilson's where each prompt's value is 0 or 1, otherwise the normal
    approximation of the mean's, within the verifier's range. Where all prompts have the same value, that would be no interval at
    all: then it is Wilson's of the share of the range that the mean is, which no values within that range can spread beyond.
    Answers to one prompt are not independent and count as one."""
    n: int
    """Prompts that were scored."""
    extra: dict[str, float] = field(default_factory=dict)
    """What the task's `summarise` adds, `part/NAME` of the parts that the verifier names, `truncated_share` and `failed` of the
    answers; with several answers a prompt `pass@k` and
    `majority@k`, see `several`; with `evaluate.blank`, `blank`: the value on blanked pictures, where the task has any; likewise
    `shuffled`, `sparse_to_dense` and `steered`, with figures of their own."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of a task that acts: `episode/success` (at any time) and `episode/success_at_end` of `extra` -> such bounds; of steered
    answers, `steered` and `steered/gain`."""
    samples: int = 1
    """Answers to each prompt, or episodes from each start."""
    temperature: float = 0.0
    """At which they were sampled; 0 is greedy."""
    verifier: str = field(default="", repr=False)
    """The id of the verifier that scored."""
    items: tuple[Item, ...] = field(default=(), repr=False)
    """Every prompt that was asked, also those that could not be scored."""
    episodes: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """Of a task that acts the first successes and failures, for `RunFolder.episodes`."""
    left_out: tuple[str, ...] = field(default=(), repr=False)
    """The prompts that could not be used, each with why; those that earlier evaluations had told are not among them."""

    def as_json(self) -> dict[str, Any]:
        """The figure, without its items and episodes."""
        apart = ("verifier", "items", "episodes", "left_out")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}

    def rows(self) -> list[dict[str, Any]]:
        """The items, as `RunFolder.items` writes them."""
        own = {"task": self.task, "split": self.split, "verifier": self.verifier}
        return [
            {**own, "id": i.id, "value": i.value, "values": list(i.values), "completion": i.completion[:SAID]}
            | ({"answer": i.prompt.answer, "messages": i.prompt.messages} if i.prompt else {})
            for i in self.items
        ]


def metric_of(config: RunConfig, label: str) -> str:
    """The verifier that evaluates a task: its own choice, unless the run file replaced that one; then the first that it gives."""
    entry = entry_of(config, label)
    spec = plugins.registry().get("tasks", entry.id)
    replaced = entry.verifiers and spec.metric in spec.verifiers and spec.metric not in entry.verifiers
    return next(iter(entry.verifiers)) if replaced or not spec.metric else spec.metric


def entry_of(config: RunConfig, label: str) -> TaskConfig:
    """The `[[tasks]]` entry of this label."""
    return next(t for t in config.tasks if t.label == label)


class Evaluator:
    """Answers `evaluate.n` held-out prompts of each task, as `[evaluate]` says, and scores them with the task's metric.

    Which prompts is the same for every seed and run, see `Heldout`. Sampled answers depend on the run's seed alone and not on the
    step, so that an evaluation can be repeated.

    tasks: label -> task. shown: what is done to a prompt before it is answered; verifiers and `summarise` get the prompt as the
    task posed it.
    """

    def __init__(
        self,
        config: RunConfig,
        tasks: Mapping[str, Task],
        collector: Collector,
        judge: Judge,
        shown: Callable[[Prompt], Prompt] = lambda prompt: prompt,
    ) -> None:
        self.config, self.tasks, self.collector, self.judge, self.shown = config, tasks, collector, judge, shown
        self.heldout = Heldout(config, tasks, collector.encode)

    def __call__(self, label: str) -> tuple[Evaluation, list[Score]]:
        """One task's figure and the scores of all answers. Raises UserError when more of them failed than `judge.failure_limit`
        allows."""
        self.collector.wake()
        metric = metric_of(self.config, label)
        spec = plugins.registry().get("verifiers", metric)
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
        entry, settings = entry_of(self.config, label), self.config.evaluate
        spec = plugins.registry().get("verifiers", metric)
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
        gone = sum(map(lost, failed))  # which says nothing of verifiers
        if len(failed) - gone > self.config.judge.failure_limit * (len(scores) - gone) or len(failed) == len(scores):
            raise UserError(
                f"{where}: {len(failed)} of {len(scores)} scores failed, more than judge.failure_limit = "
                f"{self.config.judge.failure_limit} allows; the first: {failed[0].detail}"
            )

    def _sparse_to_dense(self, label: str, metric: str, spec: VerifierSpec) -> dict[str, float]:
        """`sparse_to_dense`, the mean score of the answers that `mmrl.sparse` decides on, and its figures."""
        settings, entry = self.config.evaluate, entry_of(self.config, label)
        limit = min(entry.max_tokens or self.config.generate.max_tokens, self.config.generate.max_tokens)

        def ask(prompts: Sequence[Prompt], frames: int, number: int) -> list[Case]:
            seed = derive(self.config.seed, "sparse", label, frames, number)
            how = sparse.sampling(number, settings.agree, limit, seed)

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

        decided = sparse.climb(
            self.heldout.prompts(entry), settings.frames, settings.agree, ask, lambda c: self._read(label, c.completion)
        )
        scores = self.judge.run(metric, [one.case for one in decided])
        self._check_failures(scores, f"evaluation of {label!r} from sparse to dense")
        value = statistics.fmean(s.value for s in scores if s.value is not None)
        return {"sparse_to_dense": value} | sparse.figures(decided, settings.frames)

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


def several(items: Sequence[Item], spec: VerifierSpec) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` ... `pass@k` and `majority@k` over items with up to k answers each.

    An answer succeeds when it scores `high` of the verifier's spec; where that is `graded`, at least the middle of its range.
    Answers that could not be scored are left out: pass@j is the mean over the items with at least j scored answers. majority@k is
    the mean score of the answer that most completions give, of equals the first; completions in which nothing is read don't vote.
    """
    k = max(len(i.values) for i in items)
    bar = (spec.low + spec.high) / 2 if spec.graded else spec.high - 1e-6
    known = [[(a, v) for a, v in zip(i.answers, i.values, strict=True) if v is not None] for i in items]
    counts = [(len(votes), sum(v >= bar for _, v in votes)) for votes in known]
    found = {}
    for j in [*(2**e for e in range(k.bit_length()) if 2**e < k), k]:
        if rates := [pass_at(j, n, c) for n, c in counts if n >= j]:
            found[f"pass@{j}"] = statistics.fmean(rates)
    return found | {f"majority@{k}": statistics.fmean(_majority_score(votes) for votes in known if votes)}


def pass_at(k: int, n: int, c: int) -> float:
    """The chance that of k answers at least one is right, estimated without bias from n >= k answers of which c were (Chen et al.
    2021, Evaluating large language models trained on code, eq. 1)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def parts_of(scores: Sequence[Score]) -> dict[str, float]:
    """`part/NAME` -> the mean of a part that the verifier named, over the answers that have it."""
    found: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.parts.items():
            found.setdefault(f"part/{name}", []).append(value)
    return {name: statistics.fmean(values) for name, values in sorted(found.items())}


def _majority_score(votes: Sequence[tuple[str, float]]) -> float:
    """(answer, score) pairs -> the score of the first that gives the majority's answer."""
    winner = majority([answer for answer, _ in votes])
    return next((value for answer, value in votes if answer == winner), votes[0][1])


def _light(rollout: Rollout | None, spec: VerifierSpec) -> Rollout | None:
    """Without what a verifier doesn't read."""
    track = rollout.track if rollout and spec.rollout else None
    return None if rollout is None else replace(rollout, inputs=None, later=None, track=track)


def _told(judged: tuple[list[Case], list[Score]]) -> tuple[list[Case], list[Score]]:
    """What other ranks are told of a prompt's answers."""
    cases, scores = judged
    return [replace(c, rollout=None, media=()) for c in cases], scores


def _values(items: Sequence[Item]) -> list[float]:
    return [i.value for i in items if i.value is not None]


def _figure(
    label: str, split: str, spec: VerifierSpec, metric: str, items: Sequence[Item], extra: dict[str, float]
) -> Evaluation:
    """The mean of the items' values with its interval."""
    values = _values(items)
    accuracy = not spec.graded and all(v in (0.0, 1.0, None) for i in items for v in i.values)
    low, high = interval_of(values, spec.low, spec.high, counted=accuracy)
    return Evaluation(
        task=label,
        split=split,
        metric="accuracy" if accuracy else metric,
        value=statistics.fmean(values),
        low=low,
        high=high,
        n=len(values),
        extra=extra,
        verifier=metric,
        items=tuple(items),
    )


def interval_of(values: Sequence[float], low: float = 0.0, high: float = 1.0, counted: bool = True) -> tuple[float, float]:
    """The bounds of the mean that `Evaluation.low` describes. low, high: of the values. counted: where all are 0 or 1, each says
    whether something held."""
    mean, n = statistics.fmean(values), len(values)
    if counted and all(v in (0.0, 1.0) for v in values):
        return wilson(sum(values), n)
    if n > 1 and statistics.stdev(values) <= 1e-9 * (high - low):
        least, most = (low + (high - low) * b for b in wilson(n * (mean - low) / (high - low), n))
        return min(least, mean), max(most, mean)  # rounding
    half = Z * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf  # one value says nothing of their spread
    return max(low, mean - half), min(high, mean + half)

"""Answer held-out prompts and score the answers."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mmrl.api.episodes import outcome_text
from mmrl.api.errors import LimitReached, PluginError, UserError, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.seeds import derive
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Case, Prompt, Rollout, Score
from mmrl.compute import ranks
from mmrl.config.sections import RunConfig, TaskConfig
from mmrl.data.prompts import Splits
from mmrl.evaluation.held_out import EvaluationPrompt, HeldOutPrompts
from mmrl.evaluation.results import PromptResult
from mmrl.judge import Judge, build_cases
from mmrl.rollout.collector import Collector
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.steering import Steering
from mmrl.run_folder.episodes import EpisodePicker
from mmrl.run_folder.rollouts import gold_with_places


@dataclass(frozen=True, slots=True)
class Answers:
    """P prompts with k answers each."""

    prompts: list[Prompt]
    """[P], from their task."""
    cases: list[Case]
    """[P * k], those of a prompt next to each other."""
    scores: list[Score]
    """[P * k]"""
    items: list[PromptResult]
    """[P]"""

    @property
    def have_videos(self) -> bool:
        return any(p.videos for p in self.prompts)


class Evaluated(Protocol):
    """The attributes of `mmrl.train.setup.Setup` that an evaluation uses. Mappings are by the task's label."""

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
        """By id of the verifier."""
        ...


class Answering:
    """Answers `evaluate.num_prompts` held-out prompts of each task, as `[evaluate]` says, and scores them with the task's metric.

    The prompts are the same for every seed and run, see `HeldOutPrompts`. Sampled answers depend on the run's seed but not on the
    step, so that an evaluation can be repeated.

    shown: changes a prompt before it is answered; verifiers and `summarise` get the task's prompt.
    """

    def __init__(
        self, setup: Evaluated, collector: Collector, judge: Judge, shown: Callable[[Prompt], Prompt] = lambda prompt: prompt
    ) -> None:
        self.setup, self.config, self.tasks = setup, setup.config, setup.tasks
        self.collector, self.judge, self.shown = collector, judge, shown
        self.heldout = HeldOutPrompts(setup.config.evaluate, setup.splits, collector.encode)

    def spec(self, label: str) -> VerifierSpec:
        """The spec of the verifier that is the task's metric. In a task that acts there is only the outcome to judge."""
        spec = self.setup.verifiers[self.setup.metrics[label]]
        return spec if self.tasks[label].simulation is None else replace(spec, outcome=True)

    def max_tokens(self, label: str) -> int:
        """Maximal number of tokens of an answer."""
        entry, limit = self.setup.entries[label], self.config.generate.max_tokens
        return min(entry.max_tokens or limit, limit)

    def answers(
        self,
        label: str,
        how: str = "",
        alter: Callable[[Prompt], Prompt] = lambda prompt: prompt,
        watched: EpisodePicker | None = None,
        steering: Steering | None = None,
    ) -> Answers:
        """A task's prompts with their answers. alter: changes a prompt before it is answered; how: describes the change in words.
        watched: picks episodes among the first answers. steering: for answers to videos. Raises LimitReached if more scores
        failed than `judge.failure_limit` allows, UserError if every episode was lost."""
        entry, settings = self.setup.entries[label], self.config.evaluate
        answered: list[Prompt] = []
        sets: list[int | None] = []
        own: dict[int, list[Case]] = {}
        at_once = max(1, self.collector.batch_size // settings.num_samples)
        for batch in self.heldout.batches(entry, at_once, lambda prompt: alter(self.shown(prompt)), strict=bool(how)):
            prompts = [one.posed for one in batch]
            mine = {len(answered) + k: one for k, one in enumerate(batch) if one.mine}
            sampling = SamplingParams(
                max_tokens=self.max_tokens(label),
                temperature=settings.temperature,
                seed=derive(self.config.seed, "evaluate", label, len(answered)),
                stop=self.config.generate.stop,
                logits_processor=steering if any(p.videos for p in prompts) else None,
            )
            rollouts = ranks.run_on_all(functools.partial(self._collect, mine, sampling))
            if watched:
                watched.see([answers[0] for answers in rollouts.values()], settings.temperature)
            own |= {n: self.cases_for(label, answers) for n, answers in rollouts.items()}
            answered += prompts
            sets += [one.set for one in batch]
        judged = ranks.gather_sharded(functools.partial(self._judge, self.setup.metrics[label], own), _without_media)
        cases, scores = [c for own_cases, _ in judged for c in own_cases], [s for _, own_scores in judged for s in own_scores]
        self.check_failures(scores, f"evaluation of {label!r}{' ' if how else ''}{how}")
        items = self._items(label, answered, cases, scores)
        return Answers(answered, cases, scores, [replace(one, set=of) for one, of in zip(items, sets, strict=True)])

    def cases_for(self, label: str, rollouts: Sequence[Rollout]) -> list[Case]:
        """The rollouts as cases, without data that the metric doesn't read, as the pixels of a whole split would not fit."""
        spec = self.spec(label)
        return [replace(c, rollout=_without_episode(c.rollout, spec)) for c in build_cases(rollouts)]

    def read(self, label: str, completion: str) -> str:
        """The answer that the task extracts from a completion."""
        with plugin_errors(f"task {label!r}: extract_answer()"):
            answer = self.tasks[label].extract_answer(completion)
        if not isinstance(answer, str):
            raise PluginError(f"task {label!r}: extract_answer() must give text, not {answer!r:.60}")
        return answer

    def check_failures(self, scores: Sequence[Score], where: str) -> None:
        """Raise LimitReached if more scores failed than `judge.failure_limit` allows, or all; UserError if every episode was
        lost."""
        failed = [s for s in scores if s.failed]
        gone = sum(s.lost for s in failed)  # the verifier didn't fail
        if gone == len(scores):
            raise UserError(f"{where}: every episode was lost, {gone} in all: {failed[0].detail}; mend what the warnings name")
        if len(failed) - gone > self.config.judge.failure_limit * (len(scores) - gone) or len(failed) == len(scores):
            raise LimitReached(
                f"{where}: {len(failed) - gone} of {len(scores) - gone} scores failed, more than judge.failure_limit = "
                f"{self.config.judge.failure_limit} allows; the first: {next(s.detail for s in failed if not s.lost)}",
                alarm="failure_limit",
            )

    def _collect(self, prompts: Mapping[int, EvaluationPrompt], sampling: SamplingParams) -> dict[int, list[Rollout]]:
        """The answers to each of these prompts; their `prompt` is the task's, not the one shown."""
        k, numbers = self.config.evaluate.num_samples, list(prompts)
        shown, read = [one.shown for one in prompts.values()], [one.read for one in prompts.values()]
        rollouts = self.collector.collect(shown, read, k, sampling, numbers=numbers)
        both = zip(numbers, prompts.values(), strict=True)
        return {n: [replace(r, prompt=one.posed) for r in rollouts[i * k : i * k + k]] for i, (n, one) in enumerate(both)}

    def _judge(self, metric: str, cases: Mapping[int, list[Case]]) -> dict[int, tuple[list[Case], list[Score]]]:
        scores = iter(self.judge.run(metric, [c for own in cases.values() for c in own]))
        return {n: (own, [next(scores) for _ in own]) for n, own in cases.items()}

    def _items(self, label: str, prompts: Sequence[Prompt], cases: Sequence[Case], scores: Sequence[Score]) -> list[PromptResult]:
        k, items = self.config.evaluate.num_samples, []
        acts = self.tasks[label].simulation is not None
        for i, prompt in enumerate(prompts):
            values = tuple(s.value for s in scores[i * k : (i + 1) * k])
            known = [v for v in values if v is not None]
            answers = tuple(self.read(label, c.completion) for c in cases[i * k : (i + 1) * k])
            value = statistics.fmean(known) if known else None
            shown = prompt if i < self.config.record.evaluation_prompts else None
            completion = outcome_text(cases[i * k].outcome) if acts else cases[i * k].completion
            gold = gold_with_places(self.tasks[label], prompt) if shown else ""
            item = PromptResult(id=prompt.id, value=value, values=values, answers=answers, completion=completion)
            items.append(replace(item, prompt=shown, gold=gold, outcome=_outcome(cases[i * k : (i + 1) * k])))
        return items


def _outcome(cases: Sequence[Case]) -> dict[str, float]:
    """See `PromptResult.outcome`."""
    names = sorted({name for case in cases for name in case.outcome})
    return {name: statistics.fmean(c.outcome[name] for c in cases if name in c.outcome) for name in names}


def _without_episode(rollout: Rollout | None, spec: VerifierSpec) -> Rollout | None:
    """The part of a rollout that the verifier reads; a stub if it reads none."""
    return rollout and (rollout.portable() if spec.rollout else rollout.to_stub(rollout.prompt))


def _without_media(judged: tuple[list[Case], list[Score]]) -> tuple[list[Case], list[Score]]:
    """A prompt's answers without media, for other ranks."""
    cases, scores = judged
    return [replace(c, rollout=None, media=()) for c in cases], scores

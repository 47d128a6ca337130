"""Held-out prompts, answered and scored."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mmrl.api.errors import LimitReached, PluginError, plugin_errors
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


@dataclass(frozen=True, slots=True)
class Answers:
    """P prompts with k answers each."""

    prompts: list[Prompt]
    """[P], as their task poses them."""
    cases: list[Case]
    """[P * k], a prompt's next to each other."""
    scores: list[Score]
    """[P * k]"""
    items: list[PromptResult]
    """[P]"""

    @property
    def have_videos(self) -> bool:
        return any(p.videos for p in self.prompts)


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


class Answering:
    """Answers `evaluate.num_prompts` held-out prompts of each task, as `[evaluate]` says, and scores them with the task's metric.

    Which prompts is the same for every seed and run, see `HeldOutPrompts`. Sampled answers depend on the run's seed alone and
    not on the step, so that an evaluation can be repeated.

    shown: what is done to a prompt before it is answered; verifiers and `summarise` get the prompt as the
    task posed it.
    """

    def __init__(
        self, setup: Evaluated, collector: Collector, judge: Judge, shown: Callable[[Prompt], Prompt] = lambda prompt: prompt
    ) -> None:
        self.setup, self.config, self.tasks = setup, setup.config, setup.tasks
        self.collector, self.judge, self.shown = collector, judge, shown
        self.heldout = HeldOutPrompts(setup.config.evaluate, setup.splits, collector.encode)

    def spec(self, label: str) -> VerifierSpec:
        """Of the verifier that is the task's metric."""
        return self.setup.verifiers[self.setup.metrics[label]]

    def max_tokens(self, label: str) -> int:
        """Limit of an answer, in tokens."""
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
        """A task's prompts with their answers. alter: what is done to a prompt before it is answered, `how` in words. watched: is
        shown the first answer to each. steering: of answers to videos. LimitReached when more scores failed than
        `judge.failure_limit` allows."""
        entry, settings = self.setup.entries[label], self.config.evaluate
        asked: list[Prompt] = []
        own: dict[int, list[Case]] = {}
        at_once = max(1, self.collector.batch_size // settings.num_samples)
        for some in self.heldout.batches(entry, at_once, lambda prompt: alter(self.shown(prompt)), strict=bool(how)):
            prompts = [one.posed for one in some]
            mine = {len(asked) + k: one for k, one in enumerate(some) if one.mine}
            sampling = SamplingParams(
                max_tokens=self.max_tokens(label),
                temperature=settings.temperature,
                seed=derive(self.config.seed, "evaluate", label, len(asked)),
                logits_processor=steering if any(p.videos for p in prompts) else None,
            )
            found = ranks.run_on_all(functools.partial(self._collect, mine, sampling))
            if watched:
                watched.see([posed[0] for posed in found.values()], settings.temperature)
            own |= {n: self.cases_for(label, posed) for n, posed in found.items()}
            asked += prompts
        judged = ranks.gather_sharded(functools.partial(self._judge, self.setup.metrics[label], own), _without_media)
        cases, scores = [c for some, _ in judged for c in some], [s for _, some in judged for s in some]
        self.check_failures(scores, f"evaluation of {label!r}{' ' if how else ''}{how}")
        return Answers(asked, cases, scores, self._items(label, asked, cases, scores))

    def cases_for(self, label: str, rollouts: Sequence[Rollout]) -> list[Case]:
        """The rollouts as cases, without what the metric doesn't read: pixels of a whole split would not fit."""
        spec = self.spec(label)
        return [replace(c, rollout=_without_episode(c.rollout, spec)) for c in build_cases(rollouts)]

    def read(self, label: str, completion: str) -> str:
        """What a completion answers, as its task reads it."""
        with plugin_errors(f"task {label!r}: answer_of()"):
            answer = self.tasks[label].extract_answer(completion)
        if not isinstance(answer, str):
            raise PluginError(f"task {label!r}: answer_of() must give text, not {answer!r:.60}")
        return answer

    def check_failures(self, scores: Sequence[Score], where: str) -> None:
        """LimitReached when more scores failed than `judge.failure_limit` allows, or all."""
        failed = [s for s in scores if s.failed]
        gone = sum(s.lost for s in failed)  # which says nothing of verifiers
        if len(failed) - gone > self.config.judge.failure_limit * (len(scores) - gone) or len(failed) == len(scores):
            raise LimitReached(
                f"{where}: {len(failed)} of {len(scores)} scores failed, more than judge.failure_limit = "
                f"{self.config.judge.failure_limit} allows; the first: {failed[0].detail}",
                alarm="failure_limit",
            )

    def _collect(self, asked: Mapping[int, EvaluationPrompt], sampling: SamplingParams) -> dict[int, list[Rollout]]:
        """The answers to each of these prompts, as if to the prompt that its task poses."""
        k, numbers = self.config.evaluate.num_samples, list(asked)
        shown, read = [one.shown for one in asked.values()], [one.read for one in asked.values()]
        rollouts = self.collector.collect(shown, read, k, sampling, numbers=numbers)
        both = zip(numbers, asked.values(), strict=True)
        return {n: [replace(r, prompt=one.posed) for r in rollouts[i * k : i * k + k]] for i, (n, one) in enumerate(both)}

    def _judge(self, metric: str, cases: Mapping[int, list[Case]]) -> dict[int, tuple[list[Case], list[Score]]]:
        scores = iter(self.judge.run(metric, [c for some in cases.values() for c in some]))
        return {n: (some, [next(scores) for _ in some]) for n, some in cases.items()}

    def _items(self, label: str, prompts: Sequence[Prompt], cases: Sequence[Case], scores: Sequence[Score]) -> list[PromptResult]:
        k, items = self.config.evaluate.num_samples, []
        for i, prompt in enumerate(prompts):
            values = tuple(s.value for s in scores[i * k : (i + 1) * k])
            known = [v for v in values if v is not None]
            answers = tuple(self.read(label, c.completion) for c in cases[i * k : (i + 1) * k])
            value = statistics.fmean(known) if known else None
            shown = prompt if i < self.config.record.evaluation_prompts else None
            completion = cases[i * k].completion
            items.append(
                PromptResult(id=prompt.id, value=value, values=values, answers=answers, completion=completion, prompt=shown)
            )
        return items


def _without_episode(rollout: Rollout | None, spec: VerifierSpec) -> Rollout | None:
    """What a verifier reads of it; a stub for one that reads nothing of it."""
    return rollout and (rollout.portable() if spec.rollout else rollout.to_stub(rollout.prompt))


def _without_media(judged: tuple[list[Case], list[Score]]) -> tuple[list[Case], list[Score]]:
    """What other ranks get of a prompt's answers."""
    cases, scores = judged
    return [replace(c, rollout=None, media=()) for c in cases], scores

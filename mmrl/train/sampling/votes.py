"""Scores without labels, from a group's own answers: agreement with the majority, or frequency minus entropy."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmrl.algorithms.labels import co_reward, frequency_entropy
from mmrl.api.errors import PluginError, plugin_errors
from mmrl.api.sampling import Group, SamplingRule, StepLoad, StepSampler
from mmrl.api.types import Score, Status
from mmrl.api.votes import majority
from mmrl.config.sections import RlStage
from mmrl.judge import LOST

VOTES = "votes"
"""The note of a group: the share of its votes that the most frequent answer has, and their number."""


class Votes(SamplingRule):
    """`labels = "majority"`: 1 for the majority answer. `labels = "ttrv"` (TTRV): frequency of the answer minus the entropy.

    With `voters` above 1, further completions vote, which are neither rewarded nor trained on (TTRL samples 64 and trains on
    32)."""

    def __init__(self, labels: str, voters: float = 1.0) -> None:
        self.labels, self.voters = labels, voters

    @classmethod
    def of(cls, stage: RlStage) -> Votes | None:
        return cls(stage.labels, stage.voters) if stage.labels in ("majority", "ttrv") else None

    def adds(self, load: StepLoad) -> StepLoad:
        return load.completing(self.voters - 1) if self.voters > 1 else load

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        further = sample.complete(groups, [g.prompt for g in groups], self.voters - 1) if self.voters > 1 else []
        others = [answers_of(group, sample) for group in further] or [[] for _ in groups]
        for group, more in zip(groups, others, strict=True):
            answers = answers_of(group, sample)
            votes = voting([*answers, *more])
            rewards = frequency_entropy(answers, votes) if self.labels == "ttrv" else co_reward(answers, votes)
            group.scores, group.notes[VOTES] = label_scores(self.labels, answers, rewards), shares_of(votes)
        return groups

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return voted(groups)


def answers_of(group: Group, sample: StepSampler) -> list[str | None]:
    """The answers that the task extracts from the group's completions; None for a lost episode, which neither votes nor is
    scored."""
    what = f"task {group.prompt.task!r}: extract_answer()"
    task, lost = sample.task(group.prompt.task), Status.ENVIRONMENT_ERROR
    with plugin_errors(what):
        answers = [None if r.status is lost else task.extract_answer(r.completion) for r in group.rollouts]
    for answer, rollout in zip(answers, group.rollouts, strict=True):
        if rollout.status is not lost:
            check_kind(answer, str, f"{what} must give text")
    return answers


def voting(answers: Iterable[str | None]) -> list[str]:
    """The answers of the episodes that weren't lost; a blank one if all were."""
    return [answer for answer in answers if answer is not None] or [""]


def shares_of(votes: Sequence[str]) -> tuple[float, int]:
    """(share of the most frequent answer, 0 without one; number of votes)."""
    label = majority(votes)
    return sum(vote == label != "" for vote in votes) / len(votes), len(votes)


def voted(groups: Sequence[Group]) -> dict[str, float]:
    """The means of both over the groups that voted."""
    noted = [group.notes[VOTES] for group in groups if VOTES in group.notes]
    if not noted:
        return {}
    shares, numbers = zip(*noted, strict=True)
    return {"votes/agreement": statistics.fmean(shares), "votes/voters": statistics.fmean(numbers)}


def label_scores(label: str, answers: Sequence[str | None], rewards: Sequence[float]) -> list[Score]:
    """The scores of a group; those of lost episodes are lost."""
    return [LOST if answer is None else Score(r, {label: r}) for answer, r in zip(answers, rewards, strict=True)]


def check_kind(found: Any, kind: type, what: str) -> None:
    """Raise PluginError unless a task's return value is of this type."""
    if not isinstance(found, kind):
        raise PluginError(f"{what}, not {found!r:.60}")

"""Scores without labels: agreement with the answers to the rephrased prompt (Co-Reward)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from mmrl.algorithms.labels import co_reward
from mmrl.api.errors import UserError, plugin_errors
from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.api.types import Prompt
from mmrl.config.sections import RlStage
from mmrl.train.sampling.votes import VOTES, answers_of, check_kind, label_scores, shares_of, voted, voting


class CoReward(SamplingRule):
    """`labels = "co-reward"`: each group is scored by the majority answer of its rephrased group, and vice versa. The step trains
    on both."""

    groups_per_prompt: ClassVar[int] = 2

    @classmethod
    def of(cls, stage: RlStage) -> CoReward | None:
        return cls() if stage.labels == "co-reward" else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        others = sample.complete(groups, [rephrased(g.prompt, sample) for g in groups])
        for group, other in zip(groups, others, strict=True):
            own, theirs = answers_of(group, sample), answers_of(other, sample)
            for one, answers, voters in ((group, own, theirs), (other, theirs, own)):
                one.scores = label_scores("co-reward", answers, co_reward(answers, voting(voters)))
                one.notes[VOTES] = shares_of(voting(voters))
        return groups + others

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return voted(groups)


def rephrased(prompt: Prompt, sample: StepSampler) -> Prompt:
    """The prompt as its task rephrases it. Raises UserError if the task doesn't rephrase it."""
    what = f"task {prompt.task!r}: rephrase()"
    with plugin_errors(what):
        found = sample.task(prompt.task).rephrase(prompt)
    if found is None:
        raise UserError(f'task {prompt.task!r} doesn\'t rephrase its prompts, which labels = "co-reward" needs')
    check_kind(found, Prompt, f"{what} must give a mmrl.Prompt")
    return replace(found, task=prompt.task)  # type: ignore[no-any-return]

"""The gold completion as one more rollout of its group (ViSurf, section 3.3)."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch

from mmrl.api.sampling import Group, SamplingRule, StepLoad, StepSampler
from mmrl.config.sections import RlStage

SHOWN, NEUTRAL = "ground_truth", "neutral"
"""Notes of a group: that the gold completion was added, and its index in the group if it gets no advantage."""


class GroundTruth(SamplingRule):
    """`ground_truth`: adds the gold completion to a group; the verifiers of `ground_truth_without` don't score it. If a sampled
    completion is as good, the gold completion gets the group's mean reward and no advantage."""

    phase: ClassVar[Literal["score", "select"]] = "select"

    def __init__(self, always: bool, without: Collection[str], success: float) -> None:
        self.always, self.without, self.success = always, without, success

    @classmethod
    def of(cls, stage: RlStage) -> GroundTruth | None:
        never, always = stage.ground_truth == "never", stage.ground_truth == "always"
        return None if never else cls(always, stage.ground_truth_without, stage.success_threshold)

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        chosen = [g for g in groups if self.always or not g.successes(self.success)]
        for group, gold in zip(chosen, sample.gold(chosen, self.without), strict=True):
            score = gold.scores[0]
            score = replace(score, parts={k: v for k, v in score.parts.items() if k not in self.without})
            group.notes[SHOWN] = True
            if group.rewards and gold.rewards and max(group.rewards) >= gold.rewards[0]:
                rest = statistics.fmean(group.rewards) - gold.rollouts[0].environment_reward
                score, group.notes[NEUTRAL] = replace(score, value=rest), len(group.rollouts)
            group.rollouts, group.scores = [*group.rollouts, *gold.rollouts], [*group.scores, score]
        return groups

    def adds(self, load: StepLoad) -> StepLoad:
        return replace(load, extra=load.extra + 1)

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return {"sampling/ground_truth": float(sum(SHOWN in g.notes for g in groups))}

    def credit(self, groups: Sequence[Group], advantages: torch.Tensor) -> None:
        advantages[torch.tensor([k == g.notes.get(NEUTRAL) for g in groups for k in range(len(g.rollouts))])] = 0.0

"""Scores from the verifiers of each task, the default of a stage."""

from __future__ import annotations

from typing import ClassVar

from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.config.sections import RlStage


class Verified(SamplingRule):
    """`labels = "task"`: the verifiers score the groups."""

    per_rollout: ClassVar[bool] = True

    @classmethod
    def of(cls, stage: RlStage) -> Verified | None:
        return cls() if stage.labels == "task" else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        sample.score(groups)
        return groups

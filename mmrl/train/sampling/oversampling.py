"""As many groups as a step trains on, of those that there are."""

from __future__ import annotations

from typing import ClassVar, Literal

from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.config.sections import RlStage


class Oversampling(SamplingRule):
    """`oversample`: so many times the prompts are sampled, and the groups whose rewards vary most kept; of equals the first."""

    phase: ClassVar[Literal["score", "select"]] = "select"

    def __init__(self, factor: float) -> None:
        self.oversample, self.leaves_out = factor, factor > 1

    @classmethod
    def of(cls, stage: RlStage) -> Oversampling:
        return cls(stage.oversample)

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        best = sorted(groups, key=lambda g: -g.spread) if self.oversample > 1 else groups
        return best[: sample.wanted]

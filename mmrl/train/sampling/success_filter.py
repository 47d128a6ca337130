"""The success filter: leaves out groups that succeed too rarely or too often."""

from __future__ import annotations

from typing import ClassVar, Literal

from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.config.sections import RlStage


class SuccessFilter(SamplingRule):
    """`min_success_rate` and `max_success_rate`: bounds of a group's share of successes, both included."""

    phase: ClassVar[Literal["score", "select"]] = "select"
    leaves_out = True

    def __init__(self, low: float, high: float, success: float) -> None:
        self.low, self.high, self.success = low, high, success

    @classmethod
    def of(cls, stage: RlStage) -> SuccessFilter | None:
        low, high = stage.min_success_rate, stage.max_success_rate
        return cls(low, high, stage.success_threshold) if low > 0 or high < 1 else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        return [g for g in groups if self.low <= g.successes(self.success) <= self.high]

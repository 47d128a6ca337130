"""Dynamic sampling (DAPO): groups without spread teach nothing, so groups of other prompts replace them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from mmrl.api.sampling import Group, SamplingRule, StepLoad, StepSampler
from mmrl.config.sections import RlStage


class DynamicSampling(SamplingRule):
    """`dynamic_sampling`: the maximal number of rounds that replace groups which this rule and earlier ones left out."""

    phase: ClassVar[Literal["score", "select"]] = "select"
    leaves_out = True

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    @classmethod
    def of(cls, stage: RlStage) -> DynamicSampling | None:
        return cls(stage.dynamic_sampling) if stage.dynamic_sampling else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        kept = [g for g in groups if g.spread]
        for _ in range(self.rounds):
            lacking = sample.wanted - sum(not g.is_added for g in kept)
            if lacking <= 0:
                break
            kept += [g for g in sample.more(lacking) if g.spread]
        return kept

    def adds(self, load: StepLoad) -> StepLoad:
        return replace(load, perhaps=(*load.perhaps, *(load.sampled + load.perhaps) * self.rounds))

"""Oversampling: sample more prompts, keep as many groups as a step trains on."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from mmrl.api.sampling import Group, SamplingRule, StepLoad, StepSampler
from mmrl.config.sections import RlStage


class Oversampling(SamplingRule):
    """`oversample`: the factor of prompts to sample. Keeps the groups whose rewards vary most; the first ones among equals."""

    phase: ClassVar[Literal["score", "select"]] = "select"

    def __init__(self, factor: float) -> None:
        self.oversample, self.leaves_out = factor, factor > 1

    @classmethod
    def of(cls, stage: RlStage) -> Oversampling:
        return cls(stage.oversample)

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        own, added = [g for g in groups if not g.is_added], [g for g in groups if g.is_added]
        best = sorted(own, key=lambda g: -g.spread) if self.oversample > 1 else own
        return [*best[: sample.wanted], *added]

    def adds(self, load: StepLoad) -> StepLoad:
        return replace(load, groups=min(load.groups, load.wanted))

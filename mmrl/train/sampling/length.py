"""A bonus for correct answers whose length is in a range (Feng et al., Video-R1)."""

from __future__ import annotations

import math

import torch

from mmrl.algorithms.shaping import length_bonus
from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.api.types import verifier_value
from mmrl.config.sections import LengthConfig, RlStage


class LengthBonus(SamplingRule):
    """`[stages.length]`: adds the bonus of `length_bonus` in groups that the rule's verifier scored."""

    def __init__(self, config: LengthConfig) -> None:
        self.config = config

    @classmethod
    def of(cls, stage: RlStage) -> LengthBonus | None:
        return cls(stage.length) if stage.length else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        rule = self.config
        for group in groups:
            judged = [verifier_value(s, rule.verifier) for s in group.scores]
            paid = [0.0 if rule.verifier else r.environment_reward for r in group.rollouts]
            known = [math.nan if v is None else v + more for v, more in zip(judged, paid, strict=True)]
            accuracy_N = torch.tensor(known, dtype=torch.float64)
            lengths_N = torch.tensor([r.length for r in group.rollouts])
            paid_N = length_bonus(
                accuracy_N, lengths_N, bonus=rule.bonus, low=rule.min_tokens, high=rule.max_tokens, threshold=rule.correct_above
            ).nan_to_num(0.0)
            if not all(v is None for v in judged):
                group.pay("length", paid_N.tolist())
        return groups

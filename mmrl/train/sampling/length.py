"""A bonus for correct answers whose length is in a range (Feng et al., Video-R1)."""

from __future__ import annotations

import torch

from mmrl.algorithms.shaping import length_bonus
from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.config.sections import LengthConfig, RlStage
from mmrl.train.sampling.groups import judged


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
            accuracy_N = judged(group, rule.verifier)
            lengths_N = torch.tensor([r.length for r in group.rollouts])
            paid_N = length_bonus(
                accuracy_N, lengths_N, bonus=rule.bonus, low=rule.min_tokens, high=rule.max_tokens, threshold=rule.correct_above
            ).nan_to_num(0.0)
            if not accuracy_N.isnan().all():
                group.pay("length", paid_N.tolist())
        return groups

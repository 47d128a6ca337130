"""Long completions (DAPO): a soft penalty near the token limit, and a mask of truncated ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from mmrl.algorithms.shaping import overlong_penalty
from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.config.sections import RlStage


class OverlongPenalty(SamplingRule):
    """`overlong_buffer`: the reward falls over the last share of a task's token limit, by at most `overlong_penalty`. Of a
    conversation the longest turn counts, since the limit is that of a turn."""

    per_rollout: ClassVar[bool] = True

    def __init__(self, buffer: float, penalty: float) -> None:
        self.buffer, self.penalty = buffer, penalty

    @classmethod
    def of(cls, stage: RlStage) -> OverlongPenalty | None:
        return cls(stage.overlong_buffer, stage.overlong_penalty) if stage.overlong_buffer else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        for group in groups:
            limit = sample.max_tokens(group.prompt.task)
            lengths_N = torch.tensor([max((size for _, size in r.turn_versions), default=0) for r in group.rollouts])
            paid_N = overlong_penalty(lengths_N, max_length=limit, buffer=self.buffer * limit, factor=self.penalty)
            group.pay("overlong", paid_N.tolist())
        return groups


class OverlongMask(SamplingRule):
    """`overlong = "mask"`: truncated completions are not trained on; they still count in their group."""

    @classmethod
    def of(cls, stage: RlStage) -> OverlongMask | None:
        return cls() if stage.overlong == "mask" else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        return groups

    def credit(self, groups: Sequence[Group], advantages: torch.Tensor) -> None:
        advantages[torch.tensor([r.status.is_truncated for g in groups for r in g.rollouts])] = torch.nan

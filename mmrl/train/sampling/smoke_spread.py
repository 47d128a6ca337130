"""Spread in a smoke run: where nothing that a random model does earns more than the rest, and no gold completion can be put
among it, nothing would be learned from, and the update would never run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from mmrl.algorithms.presets import Algorithm
from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.config.sections import RlStage
from mmrl.train.sampling.dynamic_sampling import DynamicSampling
from mmrl.train.sampling.overlong import OverlongMask
from mmrl.train.sampling.oversampling import Oversampling
from mmrl.train.sampling.smoke_gold import GOLD
from mmrl.train.sampling.success_filter import SuccessFilter

DRAWN = "smoke_drawn"
"""The note of a group: its rewards were drawn."""
BEFORE = (SuccessFilter, DynamicSampling, Oversampling, OverlongMask)
"""Rules that leave out what has no spread, or that come last."""


class SmokeSpread(SamplingRule):
    """Where all groups lack spread, every second rollout (or group) is paid more: then the update is shown, and the reward
    isn't. With rules that leave groups out, every second group stays as it is, so that they leave some out."""

    phase: ClassVar[Literal["score", "select"]] = "select"

    def __init__(self, in_groups: bool, pays: float = 1.0, spares: bool = False) -> None:
        """in_groups: rollouts are compared within a group; otherwise over the step. pays: what is paid more, which should count
        as a success. spares: with `in_groups`, leave every second group without spread."""
        self.in_groups, self.pays, self.spares = in_groups, pays, spares

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        for group in self._flat(groups):
            group.pay("smoke", [self.pays * (k % 2 if self.in_groups else 1) for k in range(len(group.rollouts))])
            group.notes[DRAWN] = True
        return groups

    def _flat(self, groups: Sequence[Group]) -> Sequence[Group]:
        """Those that are paid, if none has spread: all groups, or every second one; over the step, every second one."""
        if self.in_groups:
            return [] if any(group.spread for group in groups) else groups[:: 2 if self.spares else 1]
        return [] if len({reward for group in groups for reward in group.rewards}) > 1 else groups[::2]

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        found = {f"sampling/{name}": float(sum(name in group.notes for group in groups)) for name in (GOLD, DRAWN)}
        return found | {"sampling/smoke_groups": float(len(groups))}


def needs_spread(algorithm: Algorithm) -> bool:
    """Whether an algorithm learns from how rewards differ."""
    return not {"rewards_N", "rewards_NT", "parts_NR"}.isdisjoint(algorithm.needs)


def with_spread(rules: Sequence[SamplingRule], stage: RlStage, algorithm: Algorithm) -> list[SamplingRule]:
    """The rules of a smoke run's stage, with `SmokeSpread`."""
    in_groups = algorithm.compares and stage.settings.get("baseline") != "batch"
    at = next((i for i, rule in enumerate(rules) if isinstance(rule, BEFORE)), len(rules))
    spread = SmokeSpread(in_groups, max(1.0, stage.success_threshold), any(rule.leaves_out for rule in rules[at:]))
    return [*rules[:at], spread, *rules[at:]]

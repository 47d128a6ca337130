"""Completions of noisy images, which are trained on as completions of the clean ones (NoisyRollout)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from mmrl.api.sampling import Group, SamplingRule, StepLoad, StepSampler
from mmrl.api.tasks.perturb import noisy
from mmrl.config.sections import NoisyConfig, RlStage

NOISY = "noisy"
"""The note of a group with such completions: the rewards of clean and of noisy images, and the level of noise."""
FARTHEST = 700.0
"""Beyond it an exponential overflows."""


class NoisyRollouts(SamplingRule):
    """`[stages.noisy]`: completions of noisy images join the group of the clean ones (Liu et al., NoisyRollout, section 3).
    Groups without images stay as they are."""

    def __init__(self, config: NoisyConfig) -> None:
        self.config = config

    @classmethod
    def of(cls, stage: RlStage) -> NoisyRollouts | None:
        return cls(stage.noisy) if stage.noisy else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        seen, level, seed = [g for g in groups if g.prompt.images], noise_level(self.config, sample.progress), sample.seed
        others = sample.complete(seen, [noisy(g.prompt, seed, level) for g in seen], self.config.share)
        sample.score(others)
        for group, other in zip(seen, others, strict=True):
            group.notes[NOISY] = (group.rewards, other.rewards, level)
            group.rollouts = group.rollouts + [r.answering(group.prompt, group.inputs) for r in other.rollouts]
            group.scores = group.scores + other.scores
        return groups

    def adds(self, load: StepLoad) -> StepLoad:
        return load.completing(self.config.share, joins=True)

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Mean rewards of clean and of noisy images, and the level of noise."""
        noted = [g.notes[NOISY] for g in groups if NOISY in g.notes]
        clean, distorted = [r for note in noted for r in note[0]], [r for note in noted for r in note[1]]
        if not clean or not distorted:
            return {}
        rewards = {"noisy/clean_reward": statistics.fmean(clean), "noisy/reward": statistics.fmean(distorted)}
        return rewards | {"noisy/level": float(noted[0][2])}


def noise_level(config: NoisyConfig, progress: float) -> int:
    """The level of noise, 0 or above. progress: the share of the stage's steps up to the present one, above 0 and at most 1."""
    if config.schedule == "constant":
        return config.level
    if config.schedule == "linear":
        return int(config.level * (1 - progress))
    falls = min(max(config.steepness * (progress - config.middle), -FARTHEST), FARTHEST)
    return int(config.level * (1 - 1 / (1 + math.exp(-falls))))

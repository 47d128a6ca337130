"""The step of an `off-policy` stage with `noise_aliasing`: play with noise that is chosen, remember the actions that came of it
and what was seen, and learn from both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mmrl.api.simulators.types import Observation
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.policies.acting.look import Look
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.eyes import Sees
from mmrl.policies.squashed import Squashed
from mmrl.policies.steered import Acted, Steered
from mmrl.train.sampling.groups import Sampled
from mmrl.train.stages.off_policy import OffPolicySteps
from mmrl.train.update.aliasing import NoiseAliased, OfBase
from mmrl.train.update.scenes import BothScenes, Scenes

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


class AliasingSteps(OffPolicySteps):
    """DSRL-NA, for a policy that steers another, which acts again on what the memory's episodes showed."""

    policy: Steered

    def __init__(self, run: StageContext, stage: OffPolicyStage) -> None:
        super().__init__(run, stage)
        self.scenes = self.scenes or Scenes(stage.capacity)

    def seen_by(self, policy: Squashed) -> Sees:
        assert isinstance(policy, Steered)
        return Acted(policy)

    def begin(self) -> None:
        policy, sees = self.policy, self.sees
        assert self.scenes is not None
        self.both = BothScenes(self.scenes)
        acts = OfBase(policy, self.both)
        self.learner = NoiseAliased(policy.actor, acts, sees.width, sees.numbers, self.stage, self.seed, policy.own.reach)
        self.memory = self.new_memory()

    # -- playing ----------------------------------------------------------------------------------------------------------

    def play(self) -> Sampled:
        """At first with the base's own noise."""
        assert self.stage.noise_aliasing is not None
        alone = self.run.at.stage_step < self.stage.noise_aliasing.base_steps
        self.run.collector.chooser = self.unsteered if alone else None
        try:
            return super().play()
        finally:
            self.run.collector.chooser = None

    @torch.no_grad()
    def unsteered(self, seen: Observation, seeds_n: torch.Tensor, calls_n: torch.Tensor, temperature: float) -> ActionSample:
        """What the base does of itself. Of the choices only the features are true, which are all that the memory takes."""
        policy = self.policy
        draw = CallRandomness(seeds_n=seeds_n, calls_n=calls_n).to(policy.device)
        seen = Look.at(seen.on(policy.device))
        features = policy.reading(seen, draw)
        choices = torch.cat([features, features.new_zeros(len(features), policy.actor.dims)], 1)[:, None]
        logprobs_nKC, tokens_n = policy.unsampled(choices)
        actions_nKA = policy.unsteered(seen, draw)
        none = torch.zeros_like(logprobs_nKC)
        return ActionSample(actions_nKA=actions_nKA, choices=choices, logprobs_nKC=none, tokens_n=tokens_n)


STEPS = AliasingSteps

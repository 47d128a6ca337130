"""TD3: a deterministic policy that explores by noise, target actions with clipped noise, and the lowest of several critics
(Fujimoto et al., Addressing Function Approximation Error in Actor-Critic Methods, algorithm 1, arXiv 1802.09477). With an
ensemble of critics, and half of each batch offline, it corrects a frozen base in ResFiT (Ankile et al., arXiv 2509.19301)."""

from __future__ import annotations

import copy
import math

import torch

from mmrl.algorithms import off_policy
from mmrl.api.errors import UserError
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.actors import Actor, NoisyTanh
from mmrl.train.update.critics import Critics, Figures, read
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.replay import Drawn, Replay


class Td3(Critics):
    """The learner of an `off-policy` stage with `td3`: a policy, its critics, the targets of both, and what resumes them."""

    def __init__(self, actor: Actor, features: int, stage: OffPolicyStage, seed: int) -> None:
        """actor: the policy that learns. features: numbers of an observation's features. Raises UserError for a policy that
        learns its noise."""
        if not isinstance(actor, NoisyTanh):
            raise UserError("stages.td3 explores by a noise that is given: set policy.options.noise, such as 0.1")
        assert stage.td3 is not None
        super().__init__(features, actor.dims, stage, seed, next(actor.parameters()).device)
        self.settings, self.actor = stage.td3, actor
        self.actor_target = copy.deepcopy(actor).requires_grad_(False)
        self.modules = {"actor": actor, "actor_target": self.actor_target, **self.modules}
        self.optimizer = Optimizer(list(actor.named_parameters()), stage)
        self.optimizers = {"actor": self.optimizer, **self.optimizers}

    def update(self, online: Replay, offline: Replay | None = None, step: int = 0) -> dict[str, float]:
        """`updates` steps of the critics, and one of the policy on the last batch; before the first of these the critics learn
        alone. step: index in the stage, for the learning rate. Returns metrics."""
        if not self.calls:
            for _ in range(math.ceil(self.settings.warmup_updates / self.stage.updates)):
                self.learn_values(online, offline, step)
        drawn, _, figures = self.learn_values(online, offline, step)
        return read(figures | self._update_actor(drawn, step))

    def following(self, drawn: Drawn, generator: torch.Generator) -> torch.Tensor:
        mean_nA, _ = self.actor_target.terms(drawn.after_nF)
        noise_nA = self.noise(mean_nA.shape, generator)
        noisy_nA = off_policy.smoothed(mean_nA, noise_nA, spread=self.settings.target_noise, most=self.settings.noise_clip)
        return self.pessimistic(drawn.after_nF, self.actor.action(drawn.after_nF, noisy_nA), generator)

    def _update_actor(self, drawn: Drawn, step: int) -> Figures:
        mean_nA, _ = self.actor.terms(drawn.seen_nF)
        actions_nA = self.actor.action(drawn.seen_nF, mean_nA)
        loss = -self.mean_value(drawn.seen_nF, actions_nA).mean()
        stepped = self.stepped("actor", loss, step)
        off_policy.follow(list(self.actor_target.parameters()), list(self.actor.parameters()), self.stage.target_rate)
        return {"loss": loss.detach(), "off_policy/action_size": mean_nA.detach().abs().mean(), **stepped}

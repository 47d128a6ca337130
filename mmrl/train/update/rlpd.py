"""RLPD: a soft actor-critic with an ensemble of critics, layer normalisation, many updates a step, and half of each batch offline
(Ball et al., Efficient Online Reinforcement Learning with Offline Data, algorithm 1, arXiv 2302.02948)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from mmrl.algorithms import off_policy
from mmrl.api.errors import UserError
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.actors import Actor, SquashedNormal
from mmrl.train.update.critics import Critics, Figures, even_density, read
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.replay import Drawn, Replay


class Rlpd(Critics):
    """The learner of an `off-policy` stage: a policy, its critics, their optimisers, and what resumes them."""

    def __init__(self, actor: Actor, features: int, stage: OffPolicyStage, seed: int, dims: int = 0) -> None:
        """actor: the policy that learns. features: numbers of an observation's features. dims: numbers of an action that the
        critics read; 0: those that the policy draws. Raises UserError for a stage that the policy can't learn by."""
        if not isinstance(actor, SquashedNormal):
            raise UserError("policy.options.noise is fixed, and a soft actor-critic learns it: set it to 0, or set stages.td3")
        if stage.conservative and actor.residual:
            raise UserError(
                "conservative needs the density of actions, and a residual policy has that of corrections: set it to 0"
            )
        super().__init__(features, dims or actor.dims, stage, seed, next(actor.parameters()).device)
        self.actor = actor
        self.modules = {"actor": actor, **self.modules}
        self.log_temperature = nn.Parameter(torch.tensor(stage.start_temperature, device=self.device).log())
        self.aim = -actor.numbers / 2 if stage.target_entropy is None else stage.target_entropy
        self.optimizer = Optimizer(list(actor.named_parameters()), stage)
        temperature = Optimizer([("log_temperature", self.log_temperature)], self.others)
        self.optimizers = {"actor": self.optimizer, **self.optimizers, "temperature": temperature}

    @torch.no_grad()
    def act(self, features_nF: torch.Tensor, noise_nA: torch.Tensor) -> torch.Tensor:
        """[n, A], in [-1, 1]. noise_nA: standard normal numbers; zeros give the likeliest action before tanh."""
        return self.actor.sample(features_nF, noise_nA)[0]

    def update(self, online: Replay, offline: Replay | None = None, step: int = 0) -> dict[str, float]:
        """`updates` steps of the critics, and one of the policy and its temperature on the last batch. step: index in the stage,
        for the learning rate. Returns metrics."""
        drawn, generator, figures = self.learn_values(online, offline, step)
        with self.dropping("policy", self.calls):
            return read(figures | self._update_actor(drawn, generator, step))

    def sampled(self, features_nF: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """(what the policy draws [n, A], log-densities [n])."""
        return self.actor.sample(features_nF, self.noise((len(features_nF), self.actor.dims), generator))

    def done(self, drawn: Drawn, chosen_nA: torch.Tensor) -> torch.Tensor:
        """[n, A]: the actions, as the critics read them, of what the policy draws where the transitions end."""
        return chosen_nA

    def worth(self, features_nF: torch.Tensor, chosen_nA: torch.Tensor) -> torch.Tensor:
        """[n]: the Qs that the policy climbs, with a gradient by what it draws alone."""
        return self.mean_value(features_nF, chosen_nA)

    def following(self, drawn: Drawn, generator: torch.Generator) -> torch.Tensor:
        chosen, logprobs = self.sampled(drawn.after_nF, generator)
        return self.soft(self.pessimistic(drawn.after_nF, self.done(drawn, chosen), generator), logprobs)

    def soft(self, q_n: torch.Tensor, logprobs_n: torch.Tensor) -> torch.Tensor:
        """[n]: Qs of what the policy draws, with the worth of its entropy if the stage adds it."""
        return q_n - self.log_temperature.exp().detach() * logprobs_n if self.stage.backup_entropy else q_n

    def contrasted(self, drawn: Drawn, q_En: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        many = self.stage.conservative_samples
        shape = (len(drawn.rewards_n), many, self.dims)
        with torch.no_grad():
            here, at_here = self.actor.sample(drawn.seen_nF, self.noise(shape, generator))
            there, at_there = self.actor.sample(drawn.after_nF, self.noise(shape, generator))
        candidates = torch.cat([self.anywhere(drawn, generator), here, there], 1)
        logprobs = torch.cat([even_density(drawn, many, self.dims), at_here, at_there], 1)
        calibrated = torch.arange(3 * many, device=self.device) >= many
        return off_policy.conservative_loss(self.critic(drawn.seen_nF, candidates), logprobs, q_En, self.floor(drawn), calibrated)

    def _update_actor(self, drawn: Drawn, generator: torch.Generator, step: int) -> Figures:
        chosen, logprobs_n = self.sampled(drawn.seen_nF, generator)
        temperature = self.log_temperature.exp().detach()
        loss = (temperature * logprobs_n - self.worth(drawn.seen_nF, chosen)).mean()
        stepped = self.stepped("actor", loss, step)
        entropy = -logprobs_n.detach().mean()
        self.stepped("temperature", self.log_temperature.exp() * (entropy - self.aim), step)
        return {"loss": loss.detach(), "entropy": entropy, "off_policy/temperature": temperature, **stepped}

    # -- resume -----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {"temperature": self.log_temperature.detach().clone()}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load_state(tensors)
        with torch.no_grad():
            self.log_temperature.copy_(tensors["temperature"])

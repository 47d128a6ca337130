"""DSRL-NA: critics of the actions that a frozen policy makes of noise, critics of noise that learn from these what any noise is
worth, and a policy that chooses noise by those (Wagenmaker et al., Steering Your Diffusion Policy with Latent Space Reinforcement
Learning, section 4.2, arXiv 2506.15799)."""

from __future__ import annotations

from typing import Protocol

import torch

from mmrl.algorithms import off_policy
from mmrl.api.seeds import derive
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.action_values import ActionValues
from mmrl.policies.actors import Actor
from mmrl.policies.steered import Steered
from mmrl.train.update.critics import Figures, frozen, read
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.replay import Drawn, Replay, draw_mixed
from mmrl.train.update.rlpd import Rlpd
from mmrl.train.update.scenes import BothScenes

AT_ONCE = 64
"""Observations in which the base acts in one pass."""


class Acts(Protocol):
    """What a frozen policy does."""

    def of(self, drawn: Drawn, after: bool, noise_nA: torch.Tensor) -> torch.Tensor:
        """[n, K * A] in [-1, 1]: before drawn transitions, or after them, where its actions begin with this noise, in units of
        `reach`."""
        ...


class OfBase:
    """Of a steered policy's base, which sees the scenes again."""

    def __init__(self, policy: Steered, scenes: BothScenes) -> None:
        self.policy, self.scenes = policy, scenes

    def of(self, drawn: Drawn, after: bool, noise_nA: torch.Tensor) -> torch.Tensor:
        keys = self.scenes.keys(drawn.last_n if after else drawn.places_n, after)
        parts = [slice(first, first + AT_ONCE) for first in range(0, len(keys), AT_ONCE)]
        return torch.cat([self.policy.actions_of(self.scenes.shown(keys[at]), noise_nA[at]) for at in parts])


class NoiseAliased(Rlpd):
    """The learner of an `off-policy` stage with `noise_aliasing`. The policy and its temperature learn in each update of the
    critics of actions, and the critics of noise behind all of these, as in the published code."""

    def __init__(
        self, actor: Actor, acts: Acts, features: int, dims: int, stage: OffPolicyStage, seed: int, reach: float
    ) -> None:
        """features, dims: numbers of an observation's features and of a whole chunk of actions. reach: size of the noise where
        the policy chooses 1."""
        super().__init__(actor, features, stage, seed, dims)
        assert stage.noise_aliasing is not None
        self.how, self.acts, self.reach = stage.noise_aliasing, acts, reach
        self.noise_critic = self._new_noise_critic(seed)
        self.modules["noise_critic"] = self.noise_critic
        self.optimizers["noise_critic"] = Optimizer(list(self.noise_critic.named_parameters()), self.of_critics)

    def _new_noise_critic(self, seed: int) -> ActionValues:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "noise critic"))
            new = ActionValues(self.features, self.actor.dims, critics=self.stage.critics, hidden=self.stage.hidden)
        return new.to(self.device)

    def begin_anew(self) -> None:
        super().begin_anew()
        self.noise_critic.load_state_dict(self._new_noise_critic(derive(self.seed, "anew")).state_dict())
        self.optimizers["noise_critic"].forget()

    def update(self, online: Replay, offline: Replay | None = None, step: int = 0) -> dict[str, float]:
        """`updates` steps of the critics of actions and of the policy, and `noise_aliasing.updates` of those of noise. step:
        index in the stage, for the learning rate. Returns metrics."""
        _, _, figures = self.learn_values(online, offline, step)
        for number in range(self.how.updates):
            seed = derive(self.seed, "noise critic", self.calls, number)
            share = self.offline_share(online, offline)
            drawn = draw_mixed(online, offline, self.stage.batch_size, seed, share=share).on(self.device)
            generator = torch.Generator().manual_seed(derive(seed, "noise"))
            figures |= self.distil(drawn, generator, step)
        return read(figures)

    def done(self, drawn: Drawn, chosen_nA: torch.Tensor) -> torch.Tensor:
        return self.acts.of(drawn, True, chosen_nA)

    def worth(self, features_nF: torch.Tensor, chosen_nA: torch.Tensor) -> torch.Tensor:
        """The lowest of the critics of noise."""
        return off_policy.lowest(frozen(self.noise_critic, features_nF, chosen_nA))

    def learn_beside(self, drawn: Drawn, generator: torch.Generator, step: int) -> Figures:
        """One step of the policy and its temperature."""
        return self._update_actor(drawn, generator, step)

    def distil(self, drawn: Drawn, generator: torch.Generator, step: int) -> Figures:
        """One step of the critics of noise: of standard normal noise, each learns the Q that the critic of actions of the same
        number has for what the base makes of it. So it learns of noise that nobody has chosen, too."""
        chosen_nA = self.noise((len(drawn.rewards_n), self.actor.dims), generator) / self.reach
        with torch.no_grad():
            targets_En = self.critic(drawn.seen_nF, self.acts.of(drawn, False, chosen_nA))
        loss = off_policy.td_loss(self.noise_critic(drawn.seen_nF, chosen_nA), targets_En, drawn.weights_n)
        self.stepped("noise_critic", loss, step)
        return {"off_policy/noise_value_loss": loss.detach()}

"""RLPD: a soft actor-critic with an ensemble of critics, layer normalisation, many updates a step, and half of each batch offline
(Ball et al., Efficient Online Reinforcement Learning with Offline Data, algorithm 1, arXiv 2302.02948)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from mmrl.algorithms import off_policy
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.policies.action_values import ActionValues, SquashedNormal
from mmrl.policies.return_bins import Bins, distributional_loss
from mmrl.train.update.replay import Drawn, Replay, draw_mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class RlpdOptions:
    """Defaults are RLPD's."""

    batch_size: int = 256
    """Transitions of an update."""
    updates: int = 20
    """Critic updates of a call; the policy is updated once, on the last batch."""
    offline_share: float = 0.5
    """Share of a batch that is offline."""
    steps: int = 1
    """Steps of a return before the bootstrap."""
    critics: int = 10
    subset: int = 2
    """Critics whose lowest value is the target, drawn anew in each update."""
    hidden: Sequence[int] = (256, 256)
    bins: Bins | None = None
    """Critics of distributions of returns."""
    learning_rate: float = 3e-4
    target_rate: float = 5e-3
    """See `off_policy.follow`."""
    backup_entropy: bool = False
    """Add the policy's entropy to the target's value."""
    target_entropy: float | None = None
    """In nats; by default minus half the numbers of an action."""
    start_temperature: float = 1.0
    conservative: float = 0.0
    """Weight of Cal-QL's penalty, such as 5."""
    conservative_samples: int = 4
    """Actions sampled for it, of the policy and at random each."""


class Rlpd:
    """A policy, its critics, their optimisers, and what resumes them."""

    def __init__(self, features: int, dims: int, options: RlpdOptions, seed: int) -> None:
        """features: numbers of an observation's features. dims: numbers of an action. Raises UserError for sizes that don't fit
        each other."""
        if not 1 <= options.subset <= options.critics:
            raise UserError(f"subset = {options.subset} of {options.critics} critics: give a number from 1 to that")
        if min(options.batch_size, options.updates, options.steps) < 1:
            raise UserError("batch_size, updates and steps of off-policy learning must be at least 1")
        self.options, self.seed, self.dims, self.calls = options, seed, dims, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = SquashedNormal(features, dims, hidden=options.hidden)
            self.critic = ActionValues(features, dims, critics=options.critics, hidden=options.hidden, bins=options.bins)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(options.start_temperature).log())
        self.aim = -dims / 2 if options.target_entropy is None else options.target_entropy
        rate = options.learning_rate
        self.optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), rate),
            "critic": torch.optim.Adam(self.critic.parameters(), rate),
            "temperature": torch.optim.Adam([self.log_temperature], rate),
        }

    @torch.no_grad()
    def act(self, features_nF: torch.Tensor, noise_nA: torch.Tensor) -> torch.Tensor:
        """[n, A], in [-1, 1]. noise_nA: standard normal numbers; zeros give the likeliest action before tanh."""
        return self.actor.sample(features_nF, noise_nA)[0]

    def update(self, online: Replay, offline: Replay | None = None) -> dict[str, float]:
        """`updates` steps of the critics and one of the policy and its temperature. Returns metrics."""
        figures: dict[str, float] = {}
        for number in range(self.options.updates):
            seed = derive(self.seed, "off-policy", self.calls, number)
            options = self.options
            drawn = draw_mixed(online, offline, options.batch_size, seed, share=options.offline_share, steps=options.steps)
            generator = torch.Generator().manual_seed(derive(seed, "noise"))
            errors_n, figures = self._update_critic(drawn, generator)
            online.reprioritise(drawn.places_n, errors_n)
        figures |= self._update_actor(drawn, generator)
        self.calls += 1
        return figures

    def _update_critic(self, drawn: Drawn, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        """(errors [n], metrics)."""
        options = self.options
        with torch.no_grad():
            noise = torch.randn(drawn.actions_nA.shape, generator=generator)
            actions, logprobs = self.actor.sample(drawn.after_nF, noise)
            subset = torch.randperm(options.critics, generator=generator)[: options.subset]
            following = off_policy.lowest(self.target(drawn.after_nF, actions), subset)
            if options.backup_entropy:
                following = following - self.log_temperature.exp() * logprobs
            targets = off_policy.td_targets(drawn.rewards_n, drawn.discounts_n, following)
        outputs = self.critic.outputs(drawn.seen_nF, drawn.actions_nA)
        if options.bins:
            q_En = options.bins.mean(outputs)
            per = distributional_loss(outputs.flatten(0, 1), targets.repeat(options.critics), options.bins)
            loss = (per.unflatten(0, (options.critics, -1)) * drawn.weights_n).mean(1).sum()
        else:
            q_En = outputs
            loss = off_policy.td_loss(q_En, targets, drawn.weights_n)
        figures = {"critic/loss": loss.item(), "critic/q": q_En.mean().item()}
        if options.conservative:
            penalty = self._conservative(drawn, q_En, generator)
            figures["critic/conservative"] = penalty.item()
            loss = loss + options.conservative * penalty
        self._step("critic", loss)
        off_policy.follow(list(self.target.parameters()), list(self.critic.parameters()), options.target_rate)
        return (q_En.detach() - targets).abs().mean(0), figures

    def _conservative(self, drawn: Drawn, q_En: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        count, many = len(drawn.rewards_n), self.options.conservative_samples
        shape = (count, many, self.dims)
        with torch.no_grad():
            here, at_here = self.actor.sample(drawn.seen_nF, torch.randn(shape, generator=generator))
            there, at_there = self.actor.sample(drawn.after_nF, torch.randn(shape, generator=generator))
        anywhere = torch.rand(shape, generator=generator) * 2 - 1
        even = torch.full((count, many), -self.dims * math.log(2))  # the density of a box of sides 2
        candidates, logprobs = torch.cat([anywhere, here, there], 1), torch.cat([even, at_here, at_there], 1)
        return off_policy.conservative_loss(
            self.critic(drawn.seen_nF, candidates), logprobs, q_En, drawn.paid_n, torch.arange(3 * many) >= many
        )

    def _update_actor(self, drawn: Drawn, generator: torch.Generator) -> dict[str, float]:
        noise = torch.randn(drawn.actions_nA.shape, generator=generator)
        actions, logprobs_n = self.actor.sample(drawn.seen_nF, noise)
        temperature = self.log_temperature.exp().detach()
        # the mean over critics, not the lowest, as REDQ and RLPD have it
        loss = (temperature * logprobs_n - self.critic(drawn.seen_nF, actions).mean(0)).mean()
        self._step("actor", loss)
        entropy = -logprobs_n.detach().mean()
        self._step("temperature", self.log_temperature.exp() * (entropy - self.aim))
        return {"actor/loss": loss.item(), "actor/entropy": entropy.item(), "actor/temperature": temperature.item()}

    def _step(self, name: str, loss: torch.Tensor) -> None:
        if not loss.isfinite():
            raise UserError(f"the loss of the {name} is not finite: most likely a learning rate was too high; lower it")
        optimizer = self.optimizers[name]
        # the policy's loss also gives the critics a gradient, which must not stay
        self.critic.zero_grad(set_to_none=True)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that `load_state` needs to go on bit for bit, beside the memories."""
        modules = {"actor": self.actor, "critic": self.critic, "target": self.target}
        found = {f"{name}.{key}": x for name, module in modules.items() for key, x in module.state_dict().items()}
        found |= {"temperature": self.log_temperature.detach(), "calls": torch.tensor(self.calls)}
        for name, optimizer in self.optimizers.items():
            for place, moments in optimizer.state_dict()["state"].items():
                found |= {f"adam.{name}.{place}.{key}": x for key, x in moments.items()}
        return {name: x.detach().clone() for name, x in found.items()}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state` gave. Raises UserError for the state of another shape."""
        modules = {"actor": self.actor, "critic": self.critic, "target": self.target}
        for name, module in modules.items():
            own = {key: tensors.get(f"{name}.{key}") for key in module.state_dict()}
            for key, x in module.state_dict().items():
                if (found := own[key]) is None or found.shape != x.shape:
                    there = None if found is None else list(found.shape)
                    raise UserError(f"the saved {name}'s {key} is {there}, and {list(x.shape)} here: make the sizes equal")
            module.load_state_dict(own)
        self.calls = int(tensors["calls"])
        with torch.no_grad():
            self.log_temperature.copy_(tensors["temperature"])
        for name, optimizer in self.optimizers.items():
            moments: dict[int, dict[str, torch.Tensor]] = {}
            for key, x in tensors.items():
                if key.startswith(f"adam.{name}."):
                    place, moment = key.removeprefix(f"adam.{name}.").split(".")
                    moments.setdefault(int(place), {})[moment] = x.clone()
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})

"""RLPD: a soft actor-critic with an ensemble of critics, layer normalisation, many updates a step, and half of each batch offline
(Ball et al., Efficient Online Reinforcement Learning with Offline Data, algorithm 1, arXiv 2302.02948)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from mmrl.algorithms import off_policy
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.action_values import ActionValues, SquashedNormal
from mmrl.policies.return_bins import Bins, distributional_loss
from mmrl.policies.shard_files import Under
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.replay import Drawn, Replay, draw_mixed


class Rlpd:
    """The learner of an `off-policy` stage: a policy, its critics, their optimisers, and what resumes them."""

    def __init__(self, actor: SquashedNormal, features: int, stage: OffPolicyStage, seed: int) -> None:
        """actor: the policy that learns. features: numbers of an observation's features. Raises UserError for a stage that the
        policy can't learn by."""
        if stage.conservative and actor.residual:
            raise UserError(
                "conservative needs the density of actions, and a residual policy has that of corrections: set it to 0"
            )
        dims = actor.dims
        self.stage, self.seed, self.dims, self.calls, self.actor = stage, seed, dims, 0, actor
        self.device = next(actor.parameters()).device
        self.bins = Bins(low=stage.low, high=stage.high, number=stage.bins, smoothing=stage.smoothing) if stage.bins else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.critic = ActionValues(features, dims, critics=stage.critics, hidden=stage.hidden, bins=self.bins).to(self.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(stage.start_temperature, device=self.device).log())
        self.aim = -dims / 2 if stage.target_entropy is None else stage.target_entropy
        self.optimizer = Optimizer(list(actor.named_parameters()), stage)
        others = stage.model_copy(update={"ema_decay": 0.0})
        critics = others.model_copy(update={"learning_rate": stage.critic_learning_rate or stage.learning_rate})
        self.optimizers = {
            "actor": self.optimizer,
            "critic": Optimizer(list(self.critic.named_parameters()), critics),
            "temperature": Optimizer([("log_temperature", self.log_temperature)], others),
        }

    @torch.no_grad()
    def act(self, features_nF: torch.Tensor, noise_nA: torch.Tensor) -> torch.Tensor:
        """[n, A], in [-1, 1]. noise_nA: standard normal numbers; zeros give the likeliest action before tanh."""
        return self.actor.sample(features_nF, noise_nA)[0]

    def update(self, online: Replay, offline: Replay | None = None, step: int = 0) -> dict[str, float]:
        """`updates` steps of the critics, and one of the policy and its temperature on the last batch. step: index in the stage,
        for the learning rate. Returns metrics."""
        figures: dict[str, float] = {}
        stage, share = self.stage, self.stage.offline_share if offline is not None else 0.0
        for number in range(stage.updates):
            seed = derive(self.seed, "off-policy", self.calls, number)
            drawn = draw_mixed(online, offline, stage.batch_size, seed, share=share, steps=stage.n_step).on(self.device)
            generator = torch.Generator().manual_seed(derive(seed, "noise"))
            errors_n, figures = self._update_critic(drawn, generator, step)
            online.reprioritise(drawn.places_n, errors_n)
        figures |= self._update_actor(drawn, generator, step)
        self.calls += 1
        return figures

    def _noise(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Standard normal numbers, the same on every device."""
        return torch.randn(*shape, generator=generator).to(self.device)

    def _update_critic(self, drawn: Drawn, generator: torch.Generator, step: int) -> tuple[torch.Tensor, dict[str, float]]:
        """(errors [n], metrics)."""
        stage = self.stage
        with torch.no_grad():
            noise = self._noise(drawn.actions_nA.shape, generator)
            actions, logprobs = self.actor.sample(drawn.after_nF, noise)
            subset = torch.randperm(stage.critics, generator=generator)[: stage.subset].to(self.device)
            following = off_policy.lowest(self.target(drawn.after_nF, actions), subset)
            if stage.backup_entropy:
                following = following - self.log_temperature.exp() * logprobs
            targets = off_policy.td_targets(drawn.rewards_n, drawn.discounts_n, following)
        outputs = self.critic.outputs(drawn.seen_nF, drawn.actions_nA)
        if self.bins:
            q_En = self.bins.mean(outputs)
            per = distributional_loss(outputs.flatten(0, 1), targets.repeat(stage.critics), self.bins)
            loss = (per.unflatten(0, (stage.critics, -1)) * drawn.weights_n).mean(1).sum()
        else:
            q_En = outputs
            loss = off_policy.td_loss(q_En, targets, drawn.weights_n)
        figures = {"value_loss": loss.item(), "value": q_En.mean().item()}
        if stage.conservative:
            penalty = self._conservative(drawn, q_En, generator)
            figures["off_policy/conservative"] = penalty.item()
            loss = loss + stage.conservative * penalty
        figures["grad_norm/critic"] = self._step("critic", loss, step)["grad_norm"]
        off_policy.follow(list(self.target.parameters()), list(self.critic.parameters()), stage.target_rate)
        return (q_En.detach() - targets).abs().mean(0), figures

    def _conservative(self, drawn: Drawn, q_En: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        count, many = len(drawn.rewards_n), self.stage.conservative_samples
        shape = (count, many, self.dims)
        with torch.no_grad():
            here, at_here = self.actor.sample(drawn.seen_nF, self._noise(shape, generator))
            there, at_there = self.actor.sample(drawn.after_nF, self._noise(shape, generator))
        anywhere = (torch.rand(shape, generator=generator) * 2 - 1).to(self.device)
        even = torch.full((count, many), -self.dims * math.log(2), device=self.device)  # the density of a box of sides 2
        candidates, logprobs = torch.cat([anywhere, here, there], 1), torch.cat([even, at_here, at_there], 1)
        calibrated = torch.arange(3 * many, device=self.device) >= many
        return off_policy.conservative_loss(self.critic(drawn.seen_nF, candidates), logprobs, q_En, drawn.paid_n, calibrated)

    def _update_actor(self, drawn: Drawn, generator: torch.Generator, step: int) -> dict[str, float]:
        actions, logprobs_n = self.actor.sample(drawn.seen_nF, self._noise(drawn.actions_nA.shape, generator))
        temperature = self.log_temperature.exp().detach()
        self.critic.requires_grad_(False)  # a gradient by the action alone
        # the mean over critics, not the lowest, as REDQ and RLPD have it
        loss = (temperature * logprobs_n - self.critic(drawn.seen_nF, actions).mean(0)).mean()
        self.critic.requires_grad_(True)
        stepped = self._step("actor", loss, step)
        entropy = -logprobs_n.detach().mean()
        self._step("temperature", self.log_temperature.exp() * (entropy - self.aim), step)
        return {"loss": loss.item(), "entropy": entropy.item(), "off_policy/temperature": temperature.item(), **stepped}

    def _step(self, name: str, loss: torch.Tensor, step: int) -> dict[str, float]:
        if not loss.isfinite():
            raise UserError(f"the loss of the {name} is not finite: most likely a learning rate was too high; lower it")
        loss.backward()
        return self.optimizers[name].step(step)

    def forget(self) -> None:
        """Drop the optimisers' running means, see `Optimizer.forget`."""
        for optimizer in self.optimizers.values():
            optimizer.forget()

    # -- resume -----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that `load_state` needs to go on bit for bit, beside the memories."""
        modules = {"actor": self.actor, "critic": self.critic, "target": self.target}
        found = {f"{name}/{key}": x for name, module in modules.items() for key, x in module.state_dict().items()}
        found |= {"temperature": self.log_temperature.detach(), "calls": torch.tensor(self.calls)}
        for name, optimizer in self.optimizers.items():
            found |= {f"optimizer/{name}/{key}": x for key, x in optimizer.state().items()}
        return {name: x.detach().clone() for name, x in found.items()}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state` gave. Raises UserError for the state of another shape."""
        modules = {"actor": self.actor, "critic": self.critic, "target": self.target}
        for name, module in modules.items():
            own = {key: tensors.get(f"{name}/{key}") for key in module.state_dict()}
            for key, x in module.state_dict().items():
                if (found := own[key]) is None or found.shape != x.shape:
                    there = None if found is None else list(found.shape)
                    raise UserError(f"the saved {name}'s {key} is {there}, and {list(x.shape)} here: make the sizes equal")
            module.load_state_dict(own)
        self.calls = int(tensors["calls"])
        with torch.no_grad():
            self.log_temperature.copy_(tensors["temperature"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state(Under(tensors, f"optimizer/{name}/"))

    def close(self) -> None:
        """End the stage."""

"""Denoising as a stochastic policy: chains from noise to actions, their likelihood, and the loss on demonstrations.

Each step is a normal distribution around what the network predicts (Ho et al., Denoising Diffusion Probabilistic Models, equation
7; Song et al., Denoising Diffusion Implicit Models, equation 12; diffusers 0.39, `DDPMScheduler` and `DDIMScheduler`). Its
likelihood is that of DPPO (Ren et al., Diffusion Policy Policy Optimization, arXiv 2409.00588, sections 4.1 and 4.3).

n calls, M moments in each, T times with which the network was trained, `...` the dimensions of a choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from mmrl.policies.acting.flow import PLACES, normal, wide
from mmrl.policies.acting.randomness import CallRandomness, of_actions

Prediction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(x [n, M, ...], times int64 [n, M], 0 to T - 1) -> float32 [n, M, ...]: what the network predicts from each x, the noise in it
or the action."""


def noise_schedule(kind: str, times: int, first: float, last: float) -> torch.Tensor:
    """float32 [T]: the variance of the noise that each time adds, as diffusers computes it. first, last: its ends, for `linear`
    and `scaled_linear`. Raises ValueError for another kind."""
    if kind == "linear":
        return torch.linspace(first, last, times)
    if kind == "scaled_linear":
        return torch.linspace(first**0.5, last**0.5, times) ** 2
    if kind != "squaredcos_cap_v2":
        raise ValueError(kind)

    def kept(share: float) -> float:  # Nichol and Dhariwal, Improved Denoising Diffusion Probabilistic Models, equation 17
        return math.cos((share + 0.008) / 1.008 * math.pi / 2) ** 2

    return torch.tensor([min(1 - kept((i + 1) / times) / kept(i / times), 0.999) for i in range(times)])


def shown(actions_nCD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(actions, how much each one counts [n, C, 1], C in sum): those that are NaN weren't shown, so that they don't count, and
    the mean of the others of their chunk stands for them."""
    real_nC1 = ~actions_nCD.isnan().any(-1, keepdim=True)
    filled = actions_nCD.where(real_nC1, actions_nCD.nanmean(1, keepdim=True))
    return filled, real_nC1 * (real_nC1.shape[1] / real_nC1.sum(1, keepdim=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Denoising:
    """Steps from noise to actions. At temperature 0 they are the scheduler's own: those of DDPM have noise, all but the last, and
    those of DDIM have none. Otherwise each has noise of at least `exploration_std`, times the temperature.

    The choices of a sampled call are the points of its chain from which and to which the last `tuned_steps` steps go [n,
    tuned_steps + 1, ...]; those of a demonstration, whose chain is unknown, the actions alone [n, 1, ...], NaN where none was
    shown.
    """

    betas_T: torch.Tensor
    """See `noise_schedule`."""
    steps: int
    """At most T, evenly spaced."""
    scheduler: Literal["DDPM", "DDIM"] = "DDPM"
    predicts: Literal["epsilon", "sample"] = "epsilon"
    """The noise, or the action."""
    clip: float | None = 1.0
    """Predicted actions are clipped to [-clip, clip]."""
    tuned_steps: int = 1
    """The last steps of the chain, which have a likelihood; the earlier ones are sampled alone."""
    exploration_std: float = 0.1
    """Least standard deviation of a step that is sampled."""
    likelihood_std: float = 0.1
    """Least standard deviation with which a likelihood is computed."""
    eta: float = 1.0
    """Share of DDPM's noise that a DDIM step has, apart from temperature 0."""

    @cached_property
    def _times(self) -> torch.Tensor:
        """int64 [steps], falling to 0."""
        return (torch.arange(self.steps) * (len(self.betas_T) // self.steps)).flip(0)

    @cached_property
    def _kept(self) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [steps] each: the share of an action's variance that is left in x before and after each step."""
        kept_T = (1 - self.betas_T).cumprod(0)
        before = kept_T[self._times]
        return before, torch.cat([before[1:], torch.ones(1)])

    @cached_property
    def _own_std(self) -> torch.Tensor:
        """float32 [steps]: standard deviations of the steps of DDPM; 0 for the last one."""
        before, after = self._kept
        return ((1 - after) / (1 - before) * (1 - before / after)).sqrt()

    @cached_property
    def _there(self) -> dict[torch.device, tuple[torch.Tensor, torch.Tensor]]:
        """Device -> what `_on` gives."""
        return {}

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 on a device, where each step would wait for them: (of each step its time, `_kept` and `_own_std` [4, steps];
        the share of an action's variance that is left at each time [T])."""
        if device not in self._there:
            steps = torch.stack([self._times.float(), *self._kept, self._own_std])
            self._there[device] = steps.to(device), (1 - self.betas_T).cumprod(0).to(device)
        return self._there[device]

    def sample(
        self, predict: Prediction, draw: CallRandomness, shape: tuple[int, ...], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(end of the chain [n, *shape], choices, log-probabilities of the last steps' numbers [n, tuned_steps, *shape])."""
        x = draw.normal(0, *shape)
        points, logprobs = [], []
        for i in range(self.steps):
            at_nM = torch.full_like(draw.calls_n, i)[:, None]
            mean, own = self._step(predict, x[:, None], at_nM, bool(temperature))
            mean, own = mean[:, 0], own[:, 0]
            std = own.clamp_min(self.exploration_std) * temperature if temperature else own
            following = mean + std * draw.normal(i + 1, *shape)
            if i >= self.steps - self.tuned_steps:
                points.append(x)
                logprobs.append(normal(following, mean, own.clamp_min(self.likelihood_std) * (temperature or 1.0)))
            x = following
        return x, torch.stack([*points, x], 1), torch.stack(logprobs, 1)

    def score(self, predict: Prediction, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probability, entropy) of the last steps' numbers, [n, tuned_steps, ...] each, with gradient. For a demonstration,
        minus the loss of its noise and 0, [n, 1, ...]; 0 where no action was shown, and more elsewhere, so that the mean is that
        of the others."""
        if choices.shape[1] == 1:
            actions, share = shown(choices[:, 0])
            loss = (self.matching(predict, actions) * share)[:, None]
            return -loss, torch.zeros_like(loss)
        before, after = choices[:, :-1], choices[:, 1:]
        at_M = torch.arange(self.steps - self.tuned_steps, self.steps, device=choices.device)
        mean, own = self._step(predict, before, at_M.expand(len(choices), -1), True)
        std = own.clamp_min(self.likelihood_std) * temperature
        entropy = std.log() + 0.5 + 0.5 * math.log(2 * math.pi)
        return normal(after, mean, std), entropy.expand_as(mean)

    def matching(self, predict: Prediction, actions: torch.Tensor) -> torch.Tensor:
        """Squared error of the prediction [n, ...] from noised actions [n, ...] (Ho et al., equation 14), averaged over `PLACES`
        times, one in each part of all T; noise and times are functions of the actions."""
        draw = of_actions(actions)
        noise = torch.stack([draw.normal(i, *actions.shape[1:]) for i in range(PLACES)], 1)
        parts = torch.arange(PLACES, device=actions.device)
        times_nM = ((parts + draw.uniform(PLACES, PLACES)) / PLACES * len(self.betas_T)).long().clamp_max(len(self.betas_T) - 1)
        kept = wide(self._on(actions.device)[1][times_nM], noise)
        found = predict(kept.sqrt() * actions[:, None] + (1 - kept).sqrt() * noise, times_nM)
        wanted = noise if self.predicts == "epsilon" else actions[:, None]
        return ((found - wanted) ** 2).mean(1)

    def settings(self) -> dict[str, Any]:
        """The settings that are saved with a policy."""
        names = ("steps", "scheduler", "tuned_steps", "exploration_std", "likelihood_std", "eta")
        return {name: getattr(self, name) for name in names}

    def _step(self, predict: Prediction, x: torch.Tensor, at_nM: torch.Tensor, noisy: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean, standard deviation of the scheduler's own noise) of the points after x [n, M, ...] at steps `at_nM`. noisy: the
        steps of DDIM have noise."""
        times, before, after, std = self._on(x.device)[0][:, at_nM]
        found = predict(x, times.long())
        before, after, std = (wide(each, x) for each in (before, after, std))
        if self.predicts == "epsilon":
            noise, action = found, (x - (1 - before).sqrt() * found) / before.sqrt()
        else:
            noise, action = (x - before.sqrt() * found) / (1 - before).sqrt(), found
        if self.clip is not None:
            action = action.clamp(-self.clip, self.clip)
        if self.scheduler == "DDIM":
            std = std * (self.eta if noisy else 0.0)
            return after.sqrt() * action + (1 - after - std**2).clamp_min(0).sqrt() * noise, std
        added = 1 - before / after
        return (after.sqrt() * added * action + (before / after).sqrt() * (1 - after) * x) / (1 - before), std

"""Flow matching as a stochastic policy: chains from noise to actions, their likelihood, and the loss on demonstrations.

Time runs from noise at 1 to actions at 0. n calls, M times in each, `...` the dimensions of a choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mmrl.policies.acting.options import NoiseOptions
from mmrl.policies.acting.randomness import CallRandomness, of_actions

Velocity = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | tuple[torch.Tensor, torch.Tensor]]
"""(x [n, M, ...], times [n, M]) -> float32 [n, M, ...]: the velocity at each x, which doesn't depend on the others. Where the
noise is learned, the standard deviations of the steps are a second tensor of this shape."""

PLACES = 4
"""Times between noise and action at which the loss of a demonstration is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Euler steps along a velocity with added noise, so that each step is a normal distribution with a known likelihood (Liu et
    al., Flow-GRPO, equation 9). The drift is corrected so that the distribution at every time is that without noise. Learned
    noise is added to plain Euler steps (Flow-Noise; see `mmrl.policies.acting.flow_noise`).

    The choices of a sampled call are the `steps + 1` points of its chain [n, steps + 1, ...]; if only `one` step is noisy, the
    points before and after it and a third that is filled with the step's index [n, 3, ...]; of a demonstration, whose chain is
    unknown, the action alone [n, 1, ...].
    """

    steps: int
    noise_level: float = 0.5
    """a in sigma(t) = a sqrt(t / (1 - t))."""
    noisy: Literal["all", "one", "learned"] = "all"
    """`one`: one step, drawn for each call separately, is noisy and trained; the others follow the velocity. Scoring then
    computes one velocity instead of `steps` (Chen et al., pi_RL, section 4.2, where a whole batch shares the step). `learned`:
    all steps are noisy, by standard deviations that come with the velocity; their likelihood is the joint one of the path
    (section 4.1), without that of its beginning, which is the same for all weights."""
    noise_range: tuple[float, float] = (0.08, 0.16)
    """Least and largest standard deviation of a step's learned noise."""
    emphasis: float = 1.0
    """The times of the loss on demonstrations follow Beta(emphasis, 1): above 1, nearer to noise."""

    def sample(
        self, velocity: Velocity, draw: CallRandomness, shape: tuple[int, ...], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(end of the chain [n, *shape], choices, log-probability of each number [n, *shape]). temperature: scales the noise of
        the steps; 0 adds none."""
        x = draw.normal(0, *shape)
        only_n = (draw.uniform(self.steps + 1) * self.steps).long() if self.noisy == "one" else None
        logprob, places = torch.zeros_like(x), [x]
        before = after = x
        for i in range(self.steps):
            at_n = torch.full_like(draw.calls_n, i)
            here_n = torch.ones_like(at_n, dtype=torch.bool) if only_n is None else only_n == at_n
            v, learned = self._at(velocity, x[:, None], self._times(at_n)[:, None])
            learned = None if learned is None else learned[:, 0]
            mean, std = self._step(x, v[:, 0], at_n, temperature * here_n, learned)
            noised = wide(here_n, x) & bool(temperature)
            following = torch.where(noised, mean + std * draw.normal(i + 1, *shape), mean)
            logprob = logprob + torch.where(noised, normal(following, mean, std.where(noised, 1.0)), 0.0)
            chosen = wide(here_n, x)
            before, after = torch.where(chosen, x, before), torch.where(chosen, following, after)
            x = following
            places.append(x)
        if only_n is None:
            return x, torch.stack(places, 1), logprob
        return x, torch.stack([before, after, wide(only_n, x).expand_as(x).to(x.dtype)], 1), logprob

    def score(self, velocity: Velocity, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probability, entropy) of each number, [n, ...] each, with gradient. For a demonstration, minus the flow matching
        loss and 0."""
        if choices.shape[1] == 1:
            return -self.matching(velocity, choices[:, 0]), torch.zeros_like(choices[:, 0])
        if self.noisy == "one":
            before, after = choices[:, :1], choices[:, 1:2]
            at_nM = choices[:, 2].flatten(1)[:, :1].round().long()
        else:
            before, after = choices[:, :-1], choices[:, 1:]
            at_nM = torch.arange(self.steps, device=choices.device).expand(len(choices), -1)
        v, learned = self._at(velocity, before, self._times(at_nM))
        mean, std = self._step(before, v, at_nM, torch.full_like(at_nM, temperature, dtype=torch.float32), learned)
        entropy = std.log() + 0.5 + 0.5 * math.log(2 * math.pi)
        return normal(after, mean, std).sum(1), entropy.sum(1)

    def matching(self, velocity: Velocity, actions: torch.Tensor) -> torch.Tensor:
        """Squared error of the velocity [n, ...] between noise and the actions [n, ...] (Lipman et al., Flow Matching for
        Generative Modeling, equation 14), averaged over `PLACES` times, one in each interval; noise and times are functions of
        the actions."""
        start, times_nM = self._noise(actions)
        t = wide(times_nM, start)
        v, _ = self._at(velocity, t * start + (1 - t) * actions[:, None], times_nM)
        return ((v - (start - actions[:, None])) ** 2).mean(1)

    def _noise(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(noise [n, M, ...], times [n, M]) for the loss of demonstrations [n, ...], as functions of these."""
        draw = of_actions(actions)
        start = torch.stack([draw.normal(i, *actions.shape[1:]) for i in range(PLACES)], 1)
        parts = torch.arange(PLACES, device=actions.device)
        return start, ((parts + draw.uniform(PLACES, PLACES)) / PLACES) ** (1 / self.emphasis)

    def settings(self) -> dict[str, Any]:
        """The settings that are saved with a policy."""
        found: dict[str, Any] = {"steps": self.steps, "noise_level": self.noise_level, "noisy": self.noisy}
        return found | ({"noise_range": list(self.noise_range)} if self.noisy == "learned" else {})

    @staticmethod
    def _at(velocity: Velocity, x: torch.Tensor, times: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The velocity, and the standard deviations that were learned, if any."""
        found = velocity(x, times)
        return found if isinstance(found, tuple) else (found, None)

    def _times(self, at: torch.Tensor) -> torch.Tensor:
        """Start times of the steps with these indices."""
        return 1.0 - at.float() / self.steps

    def _step(
        self, x: torch.Tensor, v: torch.Tensor, at: torch.Tensor, spread: torch.Tensor, learned: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean, standard deviation) of the point after x at steps `at`. spread: scales the noise, of the same shape as `at`.
        learned: standard deviations of the noise, of the shape of x, in place of `noise_level`'s."""
        delta = 1.0 / self.steps
        if learned is not None:
            return x - v * delta, learned * wide(spread, x)
        t = self._times(at)
        sigma = self.noise_level * (t / (1.0 - t).clamp_min(delta)).sqrt() * spread
        t, sigma = wide(t, x), wide(sigma, x)
        drift = v + sigma**2 / (2 * t) * (x + (1 - t) * v)
        return x - drift * delta, (sigma * math.sqrt(delta)).expand_as(x)


def chains(noise: NoiseOptions, steps: int, kind: type[Chains] = Chains, **others: Any) -> Chains:
    """Chains of a policy's options. others: further fields of `kind`."""
    ends = (noise.noise_range[0], noise.noise_range[1])
    return kind(steps=steps, noise_level=noise.noise_level, noisy=noise.noisy, noise_range=ends, **others)


def normal(x: torch.Tensor, mean: torch.Tensor, std: Any) -> torch.Tensor:
    """Log-density of the normal distribution, elementwise."""
    std = torch.as_tensor(std, device=x.device)
    return -0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)


def wide(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """x with trailing axes of length 1, so that it has as many axes as `other`."""
    return x.view(*x.shape, *[1] * (other.dim() - x.dim()))

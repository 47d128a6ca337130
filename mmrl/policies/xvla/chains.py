"""How X-VLA turns noise into actions, as a stochastic policy.

The network says the action itself, not a velocity. A step mixes the noise with which the chain began and the action that was said
last: x at time t is t noise + (1 - t) action (lerobot 0.6.1, modeling_xvla.py, generate_actions). That is no Euler step, which
would keep what it has. n calls, M times in each, C actions, D numbers in each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from mmrl.policies.acting.flow import Chains, Velocity, normal, wide
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.xvla.spaces import Space, numbers_of


@dataclass(frozen=True, kw_only=True)
class Remixing(Chains):
    """X-VLA's steps with the noise of `Chains` beside them: a part of the noise in x is replaced by new noise, so that x at every
    time is distributed as without it. Without new noise the steps are the published ones.

    The last step's noise is added to the action itself, in units of `Space.scales`: that of a place in metres is 500 ** 0.5 times
    smaller. A gripper that is learned by cross-entropy has no such noise: its number is tossed in the last step, 1 with the
    probability that the network says; without noise it is that probability. Numbers that the network doesn't read have a
    likelihood in the last step alone.

    The choices of a sampled call are the points of its chain [n, steps + 1, C, D]; with one noisy step the chain's beginning, the
    points before and after that step, and its index [n, 4, C, D]; of a demonstration the actions alone [n, 1, C, D]."""

    space: Space

    def sample(
        self, velocity: Velocity, draw: CallRandomness, shape: tuple[int, ...], temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Chains.sample`; `velocity` says actions. The end has the grippers' probabilities, or what was tossed."""
        start = draw.normal(0, *shape)
        only_n = (draw.uniform(self.steps + 1) * self.steps).long() if self.noisy == "one" else None
        own = numbers_of(self.space, start.device)
        x, logprob, places = start, torch.zeros_like(start), [start]
        before = after = start
        for i in range(self.steps):
            at_n, last = torch.full_like(draw.calls_n, i), i == self.steps - 1
            here_n = torch.ones_like(at_n, dtype=torch.bool) if only_n is None else only_n == at_n
            said, learned = self._at(velocity, x[:, None], self._times(at_n)[:, None])
            mean, std = self._moved(start[:, None], said, at_n[:, None], (temperature * here_n)[:, None], learned)
            mean, std = mean[:, 0], std[:, 0]
            noised = wide(here_n, x) & bool(temperature)
            following = torch.where(noised, mean + std * draw.normal(i + 1, *shape), mean)
            if last:
                shares = (mean / (temperature or 1.0)).sigmoid()
                chosen = (draw.uniform(self.steps + 2, *shape) < shares).to(x.dtype)
                following = torch.where(own.tossed, torch.where(noised, chosen, mean.sigmoid()), following)
            found = self._logprob(following[:, None], mean[:, None], std[:, None], at_n[:, None], temperature or 1.0)[:, 0]
            logprob = logprob + torch.where(noised, found, 0.0)
            before = torch.where(wide(here_n, x), x, before)
            after = torch.where(wide(here_n, x), following, after)
            x = following
            places.append(x)
        end = torch.where(own.unread & ~own.tossed, x.sigmoid(), x)  # what was tossed has gone through it
        if only_n is None:
            return end, torch.stack(places, 1), logprob
        return end, torch.stack([start, before, after, wide(only_n, x).expand_as(x).to(x.dtype)], 1), logprob

    def score(self, velocity: Velocity, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Chains.score`. The mean over an action's numbers of what a demonstration has is minus the published loss."""
        if choices.shape[1] == 1:
            return -self.matching(velocity, choices[:, 0]), torch.zeros_like(choices[:, 0])
        if self.noisy == "one":
            before, after, at_nM = choices[:, 1:2], choices[:, 2:3], choices[:, 3].flatten(1)[:, :1].round().long()
        else:
            before, after = choices[:, :-1], choices[:, 1:]
            at_nM = torch.arange(self.steps, device=choices.device).expand(len(choices), -1)
        said, learned = self._at(velocity, before, self._times(at_nM))
        spread = torch.full_like(at_nM, temperature, dtype=torch.float32)
        mean, std = self._moved(choices[:, :1], said, at_nM, spread, learned)
        found = self._logprob(after, mean, std, at_nM, temperature)
        return found.sum(1), self._entropy(mean, std, at_nM, temperature).sum(1)

    def matching(self, velocity: Velocity, actions: torch.Tensor) -> torch.Tensor:
        """[n, C, D]: the published loss, D times each number's share of it, averaged over `PLACES` times from a uniform
        distribution, one in each interval; noise and times are functions of the actions."""
        x, times_nM = self.noised(actions)
        said, _ = self._at(velocity, x, times_nM)
        return self.space.size * self.space.errors(said, actions[:, None].expand_as(said)).mean(1)

    def noised(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(actions with noise [n, M, C, D], their times [n, M])."""
        start, times_nM = self._noise(actions)
        t = wide(times_nM, start)
        return t * start + (1 - t) * actions[:, None], times_nM

    def _moved(
        self, start: torch.Tensor, said: torch.Tensor, at: torch.Tensor, spread: torch.Tensor, learned: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean, standard deviation) of the points after steps `at` [n, M], [n, M, C, D] each; the deviation is 0 where a number
        has no noise. start: where the chains began [n, 1, C, D]. said: the actions that the network says. spread: scales the
        noise, [n, M]. learned: see `Chains._step`."""
        delta, t = 1.0 / self.steps, self._times(at)
        later = wide((t - delta).clamp_min(0.0), said)
        last = wide(at == self.steps - 1, said)
        if learned is not None:
            std, kept = learned * wide(spread, said), later
        else:
            sigma = self.noise_level * (delta * t / (1.0 - t).clamp_min(delta)).sqrt() * spread
            std = torch.where(last, wide(sigma, said), torch.minimum(wide(sigma, said), later)).expand_as(said)
            kept = (later**2 - std**2).clamp_min(0.0).sqrt()  # of the last step 0, as no noise is left there
        own = numbers_of(self.space, said.device)
        std = torch.where(last, std * own.scales, std)
        noiseless = torch.where(last, own.tossed, own.unread)
        return (1 - later) * said + kept * start, torch.where(noiseless, 0.0, std)

    def _logprob(
        self, x: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, at: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """[n, M, C, D]: of the points after steps `at`; 0 for numbers without noise."""
        found = torch.where(std > 0, normal(x, mean, std.where(std > 0, 1.0)), 0.0)
        tosses = wide(at == self.steps - 1, x) & numbers_of(self.space, x.device).tossed
        return torch.where(tosses, -binary_cross_entropy_with_logits(mean / temperature, x.clamp(0, 1), reduction="none"), found)

    def _entropy(self, mean: torch.Tensor, std: torch.Tensor, at: torch.Tensor, temperature: float) -> torch.Tensor:
        """As `_logprob`. That of a toss is of its two outcomes."""
        one = torch.ones_like(std)
        found = torch.where(std > 0, -normal(one, one, std.where(std > 0, 1.0)) + 0.5, 0.0)
        logit = mean / temperature
        tosses = wide(at == self.steps - 1, mean) & numbers_of(self.space, mean.device).tossed
        return torch.where(tosses, softplus(logit) - logit * logit.sigmoid(), found)

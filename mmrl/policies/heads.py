"""From hidden states to actions: one of several bins a number, a normal distribution, or a flow. n calls, K actions in a chunk, A
numbers in an action, F features.

What a head draws is a function of each call's seed (`mmrl.noise`), so that an episode repeats itself in any company.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mmrl import noise
from mmrl.policies.action_tokens import ActionTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What the randomness of n calls is a function of."""

    seeds_n: torch.Tensor
    """int64, of the episodes."""
    calls_n: torch.Tensor
    """int64: which call of its episode each is."""

    def to(self, device: torch.device) -> Draw:
        return Draw(seeds_n=self.seeds_n.to(device), calls_n=self.calls_n.to(device))

    def uniform(self, use: int, *shape: int) -> torch.Tensor:
        """float32 [n, *shape]. use: tells the draws of one call apart."""
        return noise.uniform(self.seeds_n, self.calls_n, use, shape=shape)

    def normal(self, use: int, *shape: int) -> torch.Tensor:
        return noise.normal(self.seeds_n, self.calls_n, use, shape=shape)


def categorical(logits: torch.Tensor, temperature: float, uniform: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64 index, float32 its log-probability at `temperature`, 1 where that is 0) of logits [..., B]; the likeliest where the
    temperature is 0, else the first at which the cumulated probability exceeds `uniform` [...]."""
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if not temperature or uniform is None:
        chosen = logprobs.argmax(-1)
    else:
        reached = logprobs.exp().cumsum(-1)
        # the last sum is 1 up to rounding: as a share of it, every uniform number falls into a bin
        chosen = torch.searchsorted((reached / reached[..., -1:]).contiguous(), uniform[..., None].contiguous(), right=True)
        chosen = chosen[..., 0].clamp_max(logits.shape[-1] - 1)
    return chosen, logprobs.gather(-1, chosen[..., None])[..., 0]


class Normal(nn.Module):
    """A normal distribution for each number, with a spread that doesn't depend on what is seen; a choice is the action itself,
    and what is beyond [-1, 1] is clipped by the simulator alone, so that its likelihood stays that of what was drawn."""

    slots = 1
    """Hidden states that an action is made of."""

    def __init__(self, features: int, dims: int, spread: float = 0.6, hidden: int = 0) -> None:
        """spread: standard deviation at the beginning. hidden: width of a hidden layer; 0 is a linear map."""
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(features, hidden), nn.GELU()] if hidden else []
        last = nn.Linear(hidden or features, dims)
        nn.init.orthogonal_(last.weight, gain=0.01)
        nn.init.zeros_(last.bias)
        self.mean = nn.Sequential(*layers, last)
        self.log_spread = nn.Parameter(torch.full((dims,), math.log(spread)))

    def sample(self, features_nKF: torch.Tensor, draw: Draw, temperature: float) -> tuple[torch.Tensor, ...]:
        """(actions_nKA, choices_nKA, logprobs_nK1); temperature scales the spread, 0 takes the mean."""
        mean = self.mean(features_nKF.float())
        spread = self.log_spread.exp() * (temperature or 1.0)
        noisy = draw.normal(0, *mean.shape[1:]) if temperature else torch.zeros_like(mean)
        chosen = mean + spread * noisy
        return chosen.clamp(-1, 1), chosen, _normal(chosen, mean, spread).sum(-1, keepdim=True)

    def score(self, features_nKF: torch.Tensor, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_nK1, entropy_nK1), with gradient."""
        mean, spread = self.mean(features_nKF.float()), self.log_spread.exp() * temperature
        entropy = (0.5 + 0.5 * math.log(2 * math.pi) + spread.log()).sum().expand(*mean.shape[:2], 1)
        return _normal(choices, mean, spread).sum(-1, keepdim=True), entropy

    def choices_of(self, actions_nKA: torch.Tensor) -> torch.Tensor:
        """What a demonstrated action is in the head's terms."""
        return actions_nKA


class Tokens(nn.Module):
    """One of `bins` for each number; its features are logits already."""

    def __init__(self, tokens: ActionTokens, dims: int) -> None:
        super().__init__()
        self.tokens, self.slots = tokens, dims

    def sample(self, logits_nKAB: torch.Tensor, draw: Draw, temperature: float) -> tuple[torch.Tensor, ...]:
        """(actions_nKA, choices_nKA int64 bins, logprobs_nKA)."""
        uniform = draw.uniform(0, *logits_nKAB.shape[1:-1]) if temperature else None
        chosen, logprobs = categorical(logits_nKAB, temperature, uniform)
        return self.tokens.action_of(chosen), chosen, logprobs

    def score(self, logits_nKAB: torch.Tensor, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_nKA, entropy_nKA), with gradient."""
        logprobs = (logits_nKAB.float() / temperature).log_softmax(-1)
        return logprobs.gather(-1, choices[..., None])[..., 0], -(logprobs.exp() * logprobs).sum(-1)

    def choices_of(self, actions_nKA: torch.Tensor) -> torch.Tensor:
        return self.tokens.bin_of(actions_nKA)


class Flow(nn.Module):
    """Flow matching: actions are carried from noise along a learned velocity, in `steps` of Euler's rule, each with a little
    noise, so that every step is a normal distribution whose likelihood is known (Liu et al., Flow-GRPO, equation 9, with time
    running from noise at 1 to actions at 0: the drift of the stochastic process has the marginals of the deterministic one).

    A choice is the whole chain, [steps + 1, A] for each action; its log-probability is the sum over the steps.
    """

    slots = 1

    def __init__(self, features: int, dims: int, steps: int = 4, noise_level: float = 0.5, hidden: int = 128) -> None:
        """noise_level: a in sigma(t) = a sqrt(t / (1 - t))."""
        super().__init__()
        self.dims, self.steps, self.noise_level = dims, steps, noise_level
        self.velocity = nn.Sequential(
            nn.Linear(features + dims + 1, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, dims)
        )

    def _at(self, features_nKF: torch.Tensor, x: torch.Tensor, t: float) -> torch.Tensor:
        return self.velocity(torch.cat([features_nKF.float(), x, torch.full_like(x[..., :1], t)], -1))

    def _step(self, features_nKF: torch.Tensor, x: torch.Tensor, i: int, spread: float) -> tuple[torch.Tensor, float]:
        """(mean, standard deviation) of what follows x at step i; `spread` scales the noise."""
        delta = 1.0 / self.steps
        t = 1.0 - i * delta
        v = self._at(features_nKF, x, t)
        sigma = self.noise_level * math.sqrt(t / max(1.0 - t, delta)) * spread
        drift = v + sigma**2 / (2 * t) * (x + (1 - t) * v)
        return x - drift * delta, sigma * math.sqrt(delta)

    def sample(self, features_nKF: torch.Tensor, draw: Draw, temperature: float) -> tuple[torch.Tensor, ...]:
        """(actions_nKA, choices [n, K, steps + 1, A], logprobs_nK1); temperature 0 adds no noise on the way."""
        shape = (*features_nKF.shape[1:2], self.dims)
        chain = [draw.normal(0, *shape)]
        logprob = torch.zeros(*features_nKF.shape[:2], 1, device=features_nKF.device)
        for i in range(self.steps):
            mean, std = self._step(features_nKF, chain[-1], i, temperature)
            following = mean + std * draw.normal(i + 1, *shape) if temperature else mean
            if temperature:
                logprob = logprob + _normal(following, mean, std).sum(-1, keepdim=True)
            chain.append(following)
        choices = torch.stack(chain, 2)
        return chain[-1].clamp(-1, 1), choices, logprob

    def score(self, features_nKF: torch.Tensor, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_nK1, entropy_nK1). Of a demonstration, whose chain is unknown, the loss of flow matching, negated."""
        if choices.shape[2] == 1:
            return self._matching(features_nKF, choices[:, :, 0]), torch.zeros(*choices.shape[:2], 1, device=choices.device)
        logprob = torch.zeros(*choices.shape[:2], 1, device=choices.device)
        entropy = 0.0
        for i in range(self.steps):
            mean, std = self._step(features_nKF, choices[:, :, i], i, temperature)
            logprob = logprob + _normal(choices[:, :, i + 1], mean, std).sum(-1, keepdim=True)
            entropy += self.dims * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(std))
        return logprob, torch.full_like(logprob, entropy)

    def _matching(self, features_nKF: torch.Tensor, actions_nKA: torch.Tensor) -> torch.Tensor:
        """Minus the squared error of the velocity at four places between noise and the action (Lipman et al., Flow Matching, eq.
        14), the noise a function of the action."""
        seeds_n = (actions_nKA.double().flatten(1) * 1e6).round().long().sum(1)
        draw = Draw(seeds_n=seeds_n, calls_n=torch.zeros_like(seeds_n))
        error = torch.zeros(*actions_nKA.shape[:2], 1, device=actions_nKA.device)
        for i, t in enumerate((0.125, 0.375, 0.625, 0.875)):
            start = draw.normal(i, *actions_nKA.shape[1:])
            v = self._at(features_nKF, t * start + (1 - t) * actions_nKA, t)
            error = error + ((v - (start - actions_nKA)) ** 2).mean(-1, keepdim=True) / 4
        return -error

    def choices_of(self, actions_nKA: torch.Tensor) -> torch.Tensor:
        return actions_nKA[:, :, None]


Head = Normal | Tokens | Flow


def _normal(x: torch.Tensor, mean: torch.Tensor, std: Any) -> torch.Tensor:
    """Log-density, elementwise."""
    std = torch.as_tensor(std, device=x.device)
    return -0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)

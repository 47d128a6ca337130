"""Heads from hidden states to actions: a bin for each number, a normal or a Laplace distribution, or a flow. n calls, K actions
in a chunk, A numbers in an action, F features.

Samples are functions of each call's seed (`mmrl.api.simulators.noise`), so that an episode doesn't depend on the rest of the
batch.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import gelu, relu

from mmrl.policies.acting.action_tokens import ActionTokens
from mmrl.policies.acting.flow import Chains, Velocity, normal
from mmrl.policies.acting.randomness import CallRandomness


def categorical(logits: torch.Tensor, temperature: float, uniform: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample from logits [..., B]: (int64 index, float32 log-probability at `temperature`, or at 1 if it is 0). The index is the
    likeliest if the temperature is 0, else the first at which the cumulated probability exceeds `uniform` [...]."""
    logprobs = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if not temperature or uniform is None:
        chosen = logprobs.argmax(-1)
    else:
        reached = logprobs.exp().cumsum(-1)
        # the last sum is 1 up to rounding: relative to it, every uniform number falls into a bin
        chosen = torch.searchsorted((reached / reached[..., -1:]).contiguous(), uniform[..., None].contiguous(), right=True)
        chosen = chosen[..., 0].clamp_max(logits.shape[-1] - 1)
    return chosen, logprobs.gather(-1, chosen[..., None])[..., 0]


class Normal(nn.Module):
    """A normal distribution for each number, with a standard deviation that doesn't depend on the observation. A choice is the
    action itself; only the simulator clips it to [-1, 1], so that its likelihood is that of the sample."""

    slots = 1
    """Number of hidden states for each action."""

    def __init__(self, features: int, dims: int, spread: float = 0.6, hidden: int = 0) -> None:
        """features: 0 if they are the mean itself, which a network predicts. spread: standard deviation at the beginning. hidden:
        width of a hidden layer; 0 is a linear map."""
        super().__init__()
        self.mean: nn.Module = nn.Identity()
        if features:
            layers: list[nn.Module] = [nn.Linear(features, hidden), nn.GELU()] if hidden else []
            last = nn.Linear(hidden or features, dims)
            nn.init.orthogonal_(last.weight, gain=0.01)
            nn.init.zeros_(last.bias)
            self.mean = nn.Sequential(*layers, last)
        self.log_spread = nn.Parameter(torch.full((dims,), math.log(spread)))

    def sample(self, features_nKF: torch.Tensor, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
        """(actions_nKA, choices_nKA, logprobs_nK1); temperature scales the spread, 0 takes the mean."""
        mean = self.mean(features_nKF.float())
        spread = self.log_spread.exp() * (temperature or 1.0)
        noisy = draw.normal(0, *mean.shape[1:]) if temperature else torch.zeros_like(mean)
        chosen = mean + spread * noisy
        return chosen, chosen, normal(chosen, mean, spread).sum(-1, keepdim=True)

    def score(self, features_nKF: torch.Tensor, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_nK1, entropy_nK1), with gradient."""
        mean, spread = self.mean(features_nKF.float()), self.log_spread.exp() * temperature
        entropy = (0.5 + 0.5 * math.log(2 * math.pi) + spread.log()).sum().expand(*mean.shape[:2], 1)
        return normal(choices, mean, spread).sum(-1, keepdim=True), entropy

    def choices_of(self, actions_nKA: torch.Tensor) -> torch.Tensor:
        """Demonstrated actions as choices of the head."""
        return actions_nKA


class Laplace(nn.Module):
    """OpenVLA-OFT's regression head (Kim, Finn and Liang, section 4.1) with a Laplace distribution around what it predicts, so
    that an action has a likelihood (Tan et al., RIPT-VLA). The log-likelihood of a demonstration is minus its L1 error over the
    scale, less the logarithm of twice the scale. A choice is the action itself, as with `Normal`."""

    slots = 1

    def __init__(self, features: int, dims: int, hidden: int, spread: float = 0.05, network: bool = False) -> None:
        """hidden: width of the network. spread: scale at the beginning (RIPT-VLA: exp(-3)). network: the scale is of a network of
        its own on the same hidden states, as in RIPT-VLA; otherwise each number has one, which doesn't depend on the
        observation."""
        super().__init__()
        self.model = ResidualPerceptron(features, hidden, dims)
        if network:
            self.scale = ScaleNetwork(features, hidden, dims, spread)
        else:
            self.log_spread = nn.Parameter(torch.full((dims,), math.log(spread)))
        self.network = network

    def spread(self, features_nKF: torch.Tensor) -> torch.Tensor:
        """The scale, [n, K, A] or [A]."""
        found: torch.Tensor = self.scale(features_nKF) if self.network else self.log_spread
        return found.exp()

    def sample(self, features_nKF: torch.Tensor, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
        """(actions_nKA, choices_nKA, logprobs_nK1); temperature scales the spread, 0 takes the prediction."""
        features_nKF = features_nKF.float()
        middle, spread = self.model(features_nKF), self.spread(features_nKF) * (temperature or 1.0)
        chosen = middle
        if temperature:
            side = draw.uniform(0, *middle.shape[1:]) - 0.5
            # the inverse of the cumulative distribution; a uniform number may be 0, where it would be infinite
            chosen = middle - spread * side.sign() * (1 - 2 * side.abs()).clamp_min(2.0**-24).log()
        return chosen, chosen, laplace(chosen, middle, spread).sum(-1, keepdim=True)

    def score(self, features_nKF: torch.Tensor, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_nK1, entropy_nK1), with gradient."""
        features_nKF = features_nKF.float()
        middle, spread = self.model(features_nKF), self.spread(features_nKF) * temperature
        entropy = (1 + (2 * spread).log()).expand_as(middle).sum(-1, keepdim=True)
        return laplace(choices, middle, spread).sum(-1, keepdim=True), entropy

    def choices_of(self, actions_nKA: torch.Tensor) -> torch.Tensor:
        return actions_nKA


def laplace(x: torch.Tensor, middle: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Log-density of the Laplace distribution, elementwise."""
    return -(x - middle).abs() / spread - (2 * spread).log()


class Tokens(nn.Module):
    """A bin for each number; its input features are the logits."""

    def __init__(self, tokens: ActionTokens, dims: int) -> None:
        super().__init__()
        self.tokens, self.slots = tokens, dims

    def sample(self, logits_nKAB: torch.Tensor, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
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
    """Actions follow a learned velocity from noise, each separately; see `Chains`. A choice is an action's whole chain, [steps +
    1, A]; its log-probability is the sum over the steps."""

    slots = 1

    def __init__(self, features: int, dims: int, steps: int = 4, noise_level: float = 0.5, hidden: int = 128) -> None:
        """noise_level: see `Chains`."""
        super().__init__()
        self.dims, self.steps, self.noise_level = dims, steps, noise_level
        self.chains = Chains(steps=steps, noise_level=noise_level)
        self.velocity = nn.Sequential(
            nn.Linear(features + dims + 1, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, dims)
        )

    def seeing(self, features_nKF: torch.Tensor) -> Velocity:
        """The velocity given these features."""

        def velocity(x_nMKA: torch.Tensor, times_nM: torch.Tensor) -> torch.Tensor:
            features = features_nKF[:, None].expand(-1, x_nMKA.shape[1], -1, -1).float()
            times = times_nM[:, :, None, None].expand(*x_nMKA.shape[:3], 1)
            found: torch.Tensor = self.velocity(torch.cat([features, x_nMKA, times], -1))
            return found

        return velocity

    def sample(self, features_nKF: torch.Tensor, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
        """(actions_nKA, choices [n, K, steps + 1, A], logprobs_nK1); temperature 0 adds no noise to the steps."""
        return self.follow(self.seeing(features_nKF), features_nKF.shape[1], draw, temperature)

    def follow(self, velocity: Velocity, chunk: int, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
        """`sample` along a velocity of `chunk` actions."""
        end, choices, logprob = self.chains.sample(velocity, draw, (chunk, self.dims), temperature)
        return end, choices.transpose(1, 2), logprob.sum(-1, keepdim=True)

    def score(self, features_nKF: torch.Tensor, choices: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(logprobs_nK1, entropy_nK1). For a demonstration, whose chain is unknown, minus the flow matching loss."""
        found, entropy = self.chains.score(self.seeing(features_nKF), choices.transpose(1, 2), temperature)
        logprob = found.mean(-1, keepdim=True) if choices.shape[2] == 1 else found.sum(-1, keepdim=True)
        return logprob, entropy.sum(-1, keepdim=True)

    def choices_of(self, actions_nKA: torch.Tensor) -> torch.Tensor:
        return actions_nKA[:, :, None]


class StateProjector(nn.Module):
    """The robot's state -> the embedding of one token; names of weights are those of `ProprioProjector`."""

    def __init__(self, numbers: int, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(numbers, width), nn.Linear(width, width)

    def forward(self, state_nP: torch.Tensor) -> torch.Tensor:
        """float32 [n, numbers] -> [n, width]."""
        return self.fc2(gelu(self.fc1(state_nP)))


class ScaleNetwork(nn.Module):
    """RIPT-VLA's network of an action's scale; names of weights are those of `LaplaceScaleHead` (Ariostgx/ript-vla,
    openvla_oft_interface.py)."""

    def __init__(self, features: int, hidden: int, dims: int, spread: float) -> None:
        super().__init__()
        self.trunk, self.log_b_head = ResidualPerceptron(features, hidden, hidden), nn.Linear(hidden, dims)
        nn.init.constant_(self.log_b_head.bias, math.log(spread))
        nn.init.xavier_uniform_(self.log_b_head.weight, gain=0.01)

    def forward(self, features_nKF: torch.Tensor) -> torch.Tensor:
        """float32 [n, K, features] -> logarithms of scales [n, K, A]."""
        found: torch.Tensor = self.log_b_head(self.trunk(features_nKF))
        return found


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ffn(x)


class ResidualPerceptron(nn.Module):
    """OFT's action head: hidden states of an action -> its numbers; names of weights are those of `MLPResNet`."""

    def __init__(self, features: int, hidden: int, out: int, blocks: int = 2) -> None:
        super().__init__()
        self.layer_norm1, self.fc1 = nn.LayerNorm(features), nn.Linear(features, hidden)
        self.mlp_resnet_blocks = nn.ModuleList([ResidualBlock(hidden) for _ in range(blocks)])
        self.layer_norm2, self.fc2 = nn.LayerNorm(hidden), nn.Linear(hidden, out)

    def forward(self, features_nKF: torch.Tensor) -> torch.Tensor:
        """float32 [n, K, features] -> [n, K, out]."""
        x = relu(self.fc1(self.layer_norm1(features_nKF)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


def own_modules(kind: str, features: int, dims: int, wide: int, *, network: bool, state: int) -> nn.ModuleDict:
    """What a `VLA` has besides its VLM, for names and shapes: the head, and the projector of a robot's state of so many numbers.
    features: width of what the head reads. wide: of a hidden state. network: whether an l1 head's scale is one."""
    made = nn.ModuleDict()
    if kind == "l1":
        made["head"] = Laplace(features, dims, wide, network=network)
    elif kind in ("normal", "flow"):
        made["head"] = Normal(features, dims) if kind == "normal" else Flow(features, dims)
    if state:
        made["state"] = StateProjector(state, wide)
    return made


Head = Normal | Laplace | Tokens | Flow

"""Learned noise of a flow: a network says how wide each step is (Zhang et al., ReinFlow, arXiv 2505.22094; Chen et al., pi_RL,
section 4.1, arXiv 2510.25889, Flow-Noise)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from mmrl.policies.acting.flow import Chains
from mmrl.policies.shard import model_state_dict

NAME = "noise_head"
"""The network's name in the model to which it is added."""
HIDDEN = (128, 64)
"""Widths of its hidden layers (RLinf, `openpi_action_model.py`)."""


class NoiseNetwork(nn.Module):
    """Hidden states of an action -> standard deviation of each of its numbers, between two ends whose logarithms it mixes."""

    def __init__(self, width: int, numbers: int, ends: tuple[float, float]) -> None:
        """width: of the hidden states. numbers: of an action. ends: least and largest standard deviation."""
        super().__init__()
        layers: list[nn.Module] = []
        for wide, out in pairwise([width, *HIDDEN]):
            layers += [nn.Linear(wide, out), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], numbers), nn.Tanh())
        self.ends = ends

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [..., width] -> [..., numbers]."""
        low, high = (math.log(end) for end in self.ends)
        share: torch.Tensor = (self.layers(hidden) + 1) / 2
        return (low + (high - low) * share).exp()


def add_noise(model: nn.Module, chains: Chains, width: int, numbers: int, seed: int) -> None:
    """Give the model a float32 `NoiseNetwork` if these chains learn their noise. The same seed gives the same weights."""
    if chains.noisy != "learned":
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model.add_module(NAME, NoiseNetwork(width, numbers, chains.noise_range))


def with_noise(model: Any, velocity: torch.Tensor, hidden: torch.Tensor) -> Any:
    """The velocity, and with it the standard deviations of the steps if the model has a network of them. hidden: of the actions,
    from which both are computed."""
    return (velocity, getattr(model, NAME)(hidden.float())) if hasattr(model, NAME) else velocity


def is_noise(name: str) -> bool:
    """Whether a weight of this name belongs to the network of the noise."""
    return name.startswith(f"{NAME}.")


def noise_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Those of the network of the noise; none without it."""
    return ((name, p) for name, p in model.named_parameters() if is_noise(name))


def weights_without_noise(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights that a published layout has a place for."""
    return {name: tensor for name, tensor in model_state_dict(model).items() if not is_noise(name)}

"""Policies whose actions can be differentiated: perceptrons of features that nothing trains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from mmrl.policies.action_values import ChoiceValues

ENDS = 0.99
"""Largest size of an action that is imitated: the number before tanh of 1 is infinite, and where it is far out, a wide
distribution around 0 is likelier than a narrow one that is nearly there, so that the mean learns nothing."""
LOG_SPREADS = (-20.0, 2.0)
"""Least and largest logarithm of a standard deviation (Haarnoja et al., Soft Actor-Critic, its published code)."""


class Actor(nn.Module):
    """A perceptron whose actions have a gradient by its weights. What it chooses is a normal number for each number of an action;
    a subclass says which, and makes an action of it."""

    slots = 1
    """Number of densities of an action."""
    gripper: ChoiceValues | None
    """The Qs of the choices of an action's last number, which isn't drawn then."""

    def __init__(self, features: int, dims: int, out: int, hidden: Sequence[int], residual: float) -> None:
        """dims: numbers of an action that are drawn. out: numbers that the perceptron gives. residual: the last `dims` features
        are a base's action, to which at most this is added; 0: the action is its own. A residual policy begins with corrections
        around 0 (Ankile et al., ResFiT, arXiv 2509.19301)."""
        super().__init__()
        self.dims, self.residual, self.gripper = dims, residual, None
        widths = [features, *hidden]
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(widths[-1], out)
        if residual:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    @property
    def numbers(self) -> int:
        """Numbers of a whole action."""
        return self.dims + (self.gripper is not None)

    def terms(self, features_nF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean, standard deviation) of what it chooses, [n, A] each."""
        raise NotImplementedError

    def action(self, features: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """[..., A] in [-1, 1]: the action of what was chosen."""
        raise NotImplementedError

    def chosen(self, actions: torch.Tensor) -> torch.Tensor:
        """[..., A]: what must be chosen for actions in [-1, 1] of its own."""
        raise NotImplementedError

    def density(self, chosen: torch.Tensor, noise: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        """[...]: the log-density of the action of `chosen` = mean + spread * noise, [..., A] each, summed over the numbers of an
        action. That of a residual policy is of its correction, before it is scaled."""
        raise NotImplementedError

    def sample(self, features_nF: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(actions, log-densities [n] or [n, M]). noise: standard normal numbers, [n, A] or [n, M, A]; zeros give the mean."""
        mean, spread = self.terms(features_nF)
        if noise.ndim == 3:
            mean, spread, features_nF = mean[:, None], spread[:, None], features_nF[:, None]
        chosen = mean + spread * noise
        return self.action(features_nF, chosen), self.density(chosen, noise, spread)

    def logprobs(self, features_nF: torch.Tensor, actions_nA: torch.Tensor) -> torch.Tensor:
        """[n]: log-densities of actions in [-1, 1] of its own."""
        mean, spread = self.terms(features_nF)
        chosen = self.chosen(actions_nA)
        return self.density(chosen, (chosen - mean) / spread, spread)


def _normal_density(noise: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    return -noise.square() / 2 - spread.log() - math.log(2 * math.pi) / 2


class SquashedNormal(Actor):
    """A policy whose action is tanh of a normal number, with a mean and a standard deviation that depend on the features
    (Haarnoja et al., Soft Actor-Critic, appendix C, arXiv 1801.01290)."""

    def __init__(
        self, features: int, dims: int, *, hidden: Sequence[int] = (256, 256), residual: float = 0.0, gripper_choices: int = 0
    ) -> None:
        """gripper_choices: of one number more, a gripper's, see `ChoiceValues`; 0: there is none."""
        super().__init__(features, dims, 2 * dims, hidden, residual)
        if gripper_choices:
            self.gripper = ChoiceValues(features, gripper_choices, hidden=hidden)

    def terms(self, features_nF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Before tanh."""
        mean, log_spread = self.head(self.body(features_nF)).chunk(2, -1)
        return mean, log_spread.clamp(*LOG_SPREADS).exp()

    def action(self, features: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        if not self.residual:
            return chosen.tanh()
        return (features[..., -self.dims :] + self.residual * chosen.tanh()).clamp(-1, 1)

    def chosen(self, actions: torch.Tensor) -> torch.Tensor:
        """Of actions at the ends a large number."""
        return actions.clamp(-ENDS, ENDS).atanh()

    def density(self, chosen: torch.Tensor, noise: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        # log(1 - tanh(x)^2), which would be log(0) for large x
        squashed = math.log(4.0) + logsigmoid(2 * chosen) + logsigmoid(-2 * chosen)
        return (_normal_density(noise, spread) - squashed).sum(-1)


class NoisyTanh(Actor):
    """TD3's policy: tanh of a perceptron, and where it explores normal noise of a fixed standard deviation besides (Fujimoto et
    al., Addressing Function Approximation Error in Actor-Critic Methods, arXiv 1802.09477). It chooses the action itself, or with
    `residual` the correction, with the noise."""

    def __init__(
        self, features: int, dims: int, *, noise: float, hidden: Sequence[int] = (256, 256), residual: float = 0.0
    ) -> None:
        """noise: standard deviation, in units of an action; it isn't scaled by `residual`."""
        super().__init__(features, dims, dims, hidden, residual)
        self.noise = noise

    def terms(self, features_nF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = self.head(self.body(features_nF)).tanh() * (self.residual or 1.0)
        return mean, torch.full_like(mean, self.noise)

    def action(self, features: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        chosen = chosen.clamp(-1, 1)
        return (features[..., -self.dims :] + chosen).clamp(-1, 1) if self.residual else chosen

    def chosen(self, actions: torch.Tensor) -> torch.Tensor:
        return actions

    def density(self, chosen: torch.Tensor, noise: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        return _normal_density(noise, spread).sum(-1)

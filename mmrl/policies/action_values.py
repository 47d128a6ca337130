"""Critics of actions: an ensemble of Qs of features and an action, and a policy whose actions can be differentiated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import layer_norm, logsigmoid, relu

from mmrl.policies.return_bins import Bins

ENDS = 0.99
"""Largest size of an action that is imitated: the number before tanh of 1 is infinite, and where it is far out, a wide
distribution around 0 is likelier than a narrow one that is nearly there, so that the mean learns nothing."""
LOG_SPREADS = (-20.0, 2.0)
"""Least and largest logarithm of a standard deviation (Haarnoja et al., Soft Actor-Critic, its published code)."""


class _Layer(nn.Module):
    """E linear maps, side by side."""

    def __init__(self, critics: int, wide: int, out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(wide)
        self.weight = nn.Parameter(torch.empty(critics, wide, out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(critics, 1, out).uniform_(-bound, bound))

    def forward(self, x_ExW: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x_ExW, self.weight)


class ActionValues(nn.Module):
    """E critics of equal shape with weights of their own, computed together. Layer normalisation before each activation bounds
    what they say of actions that no data have (Ball et al., RLPD, section 4.2, arXiv 2302.02948)."""

    def __init__(
        self,
        features: int,
        dims: int,
        *,
        critics: int = 10,
        hidden: Sequence[int] = (256, 256),
        normalise: bool = True,
        bins: Bins | None = None,
    ) -> None:
        """features: numbers of an observation's features. dims: numbers of an action. critics: 2 are twin Qs. normalise: with
        layer normalisation. bins: predict a distribution of returns instead of a number."""
        super().__init__()
        self.critics, self.normalise, self.bins = critics, normalise, bins
        widths = [features + dims, *hidden, bins.number if bins else 1]
        self.layers = nn.ModuleList([_Layer(critics, wide, out) for wide, out in pairwise(widths)])

    def outputs(self, features_nF: torch.Tensor, actions_nA: torch.Tensor) -> torch.Tensor:
        """[E, n]: Qs; or with bins [E, n, bins]: their log-probabilities."""
        x = torch.cat([features_nF, actions_nA], -1).expand(self.critics, -1, -1)
        return self._after_first(self.layers[0](x))

    def _after_first(self, x: torch.Tensor) -> torch.Tensor:
        """`outputs` of what the first layer gives, [E, n, its width]."""
        for number, layer in enumerate(self.layers):
            x = layer(x) if number else x
            if number < len(self.layers) - 1:
                x = relu(layer_norm(x, x.shape[-1:]) if self.normalise else x)
        return x.log_softmax(-1) if self.bins else x[..., 0]

    def forward(self, features_nF: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Qs: [E, n] of actions [n, A], [E, n, M] of M actions each, [n, M, A]."""
        if actions.ndim == 3:  # what the first layer makes of an observation is the same for all its actions
            wide, first = features_nF.shape[-1], self.layers[0]
            assert isinstance(first, _Layer)
            seen_EnW = torch.baddbmm(first.bias, features_nF.expand(self.critics, -1, -1), first.weight[:, :wide])
            done_ENW = torch.matmul(actions.flatten(0, 1), first.weight[:, wide:])
            found = self._after_first(done_ENW + seen_EnW.repeat_interleave(actions.shape[1], 1))
        else:
            found = self.outputs(features_nF, actions)
        return (self.bins.mean(found) if self.bins else found).unflatten(1, actions.shape[:-1])


class SquashedNormal(nn.Module):
    """A policy whose action is tanh of a normal number, with a mean and a standard deviation that depend on the features
    (Haarnoja et al., Soft Actor-Critic, appendix C, arXiv 1801.01290). Its samples have a gradient by its weights."""

    slots = 1
    """Number of densities of an action."""

    def __init__(self, features: int, dims: int, *, hidden: Sequence[int] = (256, 256), residual: float = 0.0) -> None:
        """residual: the last `dims` features are a base's action, to which at most this is added; 0: the action is its own.
        A residual policy begins with corrections around 0 (Ankile et al., ResFiT, arXiv 2509.19301)."""
        super().__init__()
        self.dims, self.residual = dims, residual
        widths = [features, *hidden]
        layers: list[nn.Module] = []
        for wide, out in pairwise(widths):
            layers += [nn.Linear(wide, out), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(widths[-1], 2 * dims)
        if residual:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def terms(self, features_nF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean, standard deviation) before tanh, [n, A] each."""
        mean, log_spread = self.head(self.body(features_nF)).chunk(2, -1)
        return mean, log_spread.clamp(*LOG_SPREADS).exp()

    def action(self, features: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """[..., A] in [-1, 1]: the action of the number before tanh."""
        if not self.residual:
            return before.tanh()
        return (features[..., -self.dims :] + self.residual * before.tanh()).clamp(-1, 1)

    def before(self, actions: torch.Tensor) -> torch.Tensor:
        """[..., A]: the number before tanh of actions in [-1, 1], of those at the ends a large one."""
        return actions.clamp(-ENDS, ENDS).atanh()

    def density(self, before: torch.Tensor, noise: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        """[...]: the log-density of tanh of `before` = mean + spread * noise, [..., A] each, summed over the numbers of an
        action."""
        density = -noise.square() / 2 - spread.log() - math.log(2 * math.pi) / 2
        # log(1 - tanh(x)^2), which would be log(0) for large x
        squashed = math.log(4.0) + logsigmoid(2 * before) + logsigmoid(-2 * before)
        return (density - squashed).sum(-1)

    def sample(self, features_nF: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(actions, log-densities [n] or [n, M]). noise: standard normal numbers, [n, A] or [n, M, A]; zeros give the mean. The
        density of a residual policy is that of its correction, before it is scaled."""
        mean, spread = self.terms(features_nF)
        if noise.ndim == 3:
            mean, spread, features_nF = mean[:, None], spread[:, None], features_nF[:, None]
        before = mean + spread * noise
        return self.action(features_nF, before), self.density(before, noise, spread)

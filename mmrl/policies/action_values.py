"""Critics of actions: an ensemble of Qs of features and an action, and the Qs of the choices of a number that is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import dropout, layer_norm, relu

from mmrl.policies.batch_renorm import BatchRenorm
from mmrl.policies.return_bins import Bins


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
    what they say of actions that no data have (Ball et al., RLPD, section 4.2, arXiv 2302.02948). In its place there may be batch
    renormalisation before each layer, whose moments move while it trains (CrossQ)."""

    def __init__(
        self,
        features: int,
        dims: int,
        *,
        critics: int = 10,
        hidden: Sequence[int] = (256, 256),
        bins: Bins | None = None,
        dropout: float = 0.0,
        renorm: Callable[[int, int], BatchRenorm] | None = None,
    ) -> None:
        """features: numbers of an observation's features. dims: numbers of an action. critics: 2 are twin Qs. bins: predict a
        distribution of returns instead of a number. dropout: share of the hidden numbers that is dropped while it trains
        (Hiraoka et al., DroQ, arXiv 2110.02034). renorm: makes, of the number of critics and a width, what normalises in place of
        layer normalisation."""
        super().__init__()
        self.critics, self.bins, self.dropout = critics, bins, dropout
        widths = [features + dims, *hidden, bins.number if bins else 1]
        self.layers = nn.ModuleList([_Layer(critics, wide, out) for wide, out in pairwise(widths)])
        self.norms = nn.ModuleList([renorm(critics, wide) for wide in widths[:-1]] if renorm else [])

    def outputs(self, features_nF: torch.Tensor, actions_nA: torch.Tensor) -> torch.Tensor:
        """[E, n]: Qs; or with bins [E, n, bins]: their log-probabilities."""
        x = torch.cat([features_nF, actions_nA], -1).expand(self.critics, -1, -1)
        x = self.norms[0](x) if self.norms else x
        return self._after_first(self.layers[0](x))

    def _after_first(self, x: torch.Tensor) -> torch.Tensor:
        """`outputs` of what the first layer gives, [E, n, its width]."""
        for number, layer in enumerate(self.layers):
            x = layer(x) if number else x
            if number < len(self.layers) - 1:
                x = dropout(x, self.dropout, self.training) if self.dropout else x
                x = self.norms[number + 1](relu(x)) if self.norms else relu(layer_norm(x, x.shape[-1:]))
        return x.log_softmax(-1) if self.bins else x[..., 0]

    def forward(self, features_nF: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Qs: [E, n] of actions [n, A], [E, n, M] of M actions each, [n, M, A]."""
        if actions.ndim == 3:
            assert not self.norms, "what is seen and what is done are normalised together"
            # what the first layer makes of an observation is the same for all its actions
            wide, first = features_nF.shape[-1], self.layers[0]
            assert isinstance(first, _Layer)
            seen_EnW = torch.baddbmm(first.bias, features_nF.expand(self.critics, -1, -1), first.weight[:, :wide])
            done_ENW = torch.matmul(actions.flatten(0, 1), first.weight[:, wide:])
            found = self._after_first(done_ENW + seen_EnW.repeat_interleave(actions.shape[1], 1))
        else:
            found = self.outputs(features_nF, actions)
        return (self.bins.mean(found) if self.bins else found).unflatten(1, actions.shape[:-1])


class ChoiceValues(nn.Module):
    """The Qs of C choices of one number of an action, evenly spaced from -1 to 1: a gripper opens, stays or closes, or with two
    opens or closes (Luo et al., HIL-SERL, arXiv 2410.21845, its `GraspCritic`). A perceptron with layer normalisation."""

    def __init__(self, features: int, choices: int, *, hidden: Sequence[int] = (256, 256)) -> None:
        """features: numbers of an observation's features. choices: 2 or 3."""
        super().__init__()
        self.choices, self.hidden = choices, list(hidden)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise([features, *hidden]):
            layers += [nn.Linear(wide, narrow), nn.LayerNorm(narrow), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], choices))

    def forward(self, features_nF: torch.Tensor) -> torch.Tensor:
        """Qs [n, C]."""
        found: torch.Tensor = self.layers(features_nF)
        return found

    def best(self, features_nF: torch.Tensor) -> torch.Tensor:
        """float32 [n, 1]: the number with the highest Q. As published, nothing is drawn: what is new is met by the other numbers
        of an action, and by who takes over."""
        return self.number_of(self(features_nF).argmax(1, keepdim=True))

    def number_of(self, choice: torch.Tensor) -> torch.Tensor:
        """float32 [...]: the number of a choice, int64 from 0."""
        return choice.float() * 2 / (self.choices - 1) - 1

    def choice_of(self, number: torch.Tensor) -> torch.Tensor:
        """int64 [...]: the choice that is nearest to a number in [-1, 1]; halfway, three choices stay and two open."""
        return (number.round() + 1).long() if self.choices == 3 else (number > 0).long()

"""Actions as tokens: numbers in [-1, 1] <-> bins <-> the last ids of a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mmrl.api.transfer import constant


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTokens:
    """Converts the numbers of an action to tokens and back.

    `openvla` is OpenVLA's arithmetic (prismatic/vla/action_tokenizer.py at c8f03f4): `bins` edges from -1 to 1, of which
    `digitize` counts those that are not above the number, and `bins - 1` centres between them; the bins `bins - 2` and
    `bins - 1` (from 0) stand for the same number. `uniform` is ours: `bins` cells of equal width, each with its own centre.
    In both the id counts down from the end of the vocabulary: the lowest number has the highest id.
    """

    bins: int = 256
    """2 to 1024."""
    kind: Literal["uniform", "openvla"] = "uniform"

    def bin_of(self, actions: torch.Tensor) -> torch.Tensor:
        """Numbers -> int64 bins, 0 to `bins` - 1; numbers beyond [-1, 1] are clipped."""
        inside = actions.clamp(-1.0, 1.0).double()
        if self.kind == "openvla":
            return torch.bucketize(inside, self._edges(actions.device), right=True).clamp(1, self.bins) - 1
        return ((inside + 1) / 2 * self.bins).floor().long().clamp(0, self.bins - 1)

    def action_of(self, bins: torch.Tensor) -> torch.Tensor:
        """int64 bins -> float32, each the middle of its cell."""
        if self.kind == "openvla":
            edges = self._edges(bins.device)
            centres = (edges[:-1] + edges[1:]) / 2
            return centres[bins.clamp(0, self.bins - 2)].float()
        return ((2 * bins.double() + 1) / self.bins - 1).float()

    def _edges(self, device: torch.device) -> torch.Tensor:
        """numpy.linspace: torch.linspace differs in the last bits, and a number on an edge must fall into the published bin."""
        return constant(tuple(np.linspace(-1.0, 1.0, self.bins).tolist()), torch.float64, device)

    def ids(self, vocabulary: int) -> list[int]:
        """The token ids of the bins 0 .. `bins` - 1, in this order. vocabulary: number of ids."""
        return [vocabulary - 1 - b for b in range(self.bins)]

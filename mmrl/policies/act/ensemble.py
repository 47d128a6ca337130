"""Temporal ensembling: an action is the weighted mean of what all calls of an episode predicted for its step (Zhao et al., arXiv
2304.13705, section 4.2 and algorithm 2)."""

from __future__ import annotations

from collections import OrderedDict

import torch

EPISODES = 4096
"""Most episodes that are remembered: more than are ever played at a time."""


class Ensemble:
    """What was predicted in each episode, by its seed. The prediction of the k-th call that foresaw a step weighs
    exp(-coefficient k), so that above 0 old ones weigh more."""

    def __init__(self, coefficient: float, chunk: int) -> None:
        """chunk: C, actions that a call predicts."""
        self.chunk = chunk
        self.weights_C = torch.exp(-coefficient * torch.arange(chunk, dtype=torch.float64))
        self._episodes: OrderedDict[int, tuple[int, int, torch.Tensor]] = OrderedDict()
        """Seed -> (its first call, its last call, weighted sums [C, D] of what is predicted from then on)."""

    def __call__(self, seeds_n: torch.Tensor, calls_n: torch.Tensor, predicted_nCD: torch.Tensor) -> torch.Tensor:
        """[n, D]: the actions of these steps. calls_n: the index of each call in its episode; a call that doesn't follow on the
        last one begins anew."""
        found = []
        for seed, call, predicted in zip(seeds_n.tolist(), calls_n.tolist(), predicted_nCD.double(), strict=True):
            first, last, sums = self._episodes.pop(seed, (call, call, predicted))
            if call == 0 or last != call - 1:
                first, sums = call, torch.zeros_like(predicted)
            else:
                sums = torch.cat([sums[1:], torch.zeros_like(sums[:1])])
            # calls that foresaw each of the next steps before this one
            earlier_C = (self.chunk - 1 - torch.arange(self.chunk)).clamp_max(call - first)
            sums = sums + predicted * self.weights_C[earlier_C].to(predicted.device)[:, None]
            found.append(sums[0] / self.weights_C[: int(earlier_C[0]) + 1].sum())
            self._episodes[seed] = (first, call, sums)
        while len(self._episodes) > max(EPISODES, len(found)):
            self._episodes.popitem(last=False)
        return torch.stack(found).to(predicted_nCD.dtype)

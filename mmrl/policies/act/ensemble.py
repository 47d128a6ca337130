"""Temporal ensembling: an action is the weighted mean of what all calls of an episode predicted for its step (Zhao et al., arXiv
2304.13705, section 4.2 and algorithm 2)."""

from __future__ import annotations

from collections import OrderedDict

import torch

from mmrl.api.transfer import upload

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
        known: list[torch.Tensor | None] = []
        firsts: list[int] = []
        for seed, call in zip(seeds := seeds_n.tolist(), calls := calls_n.tolist(), strict=True):
            first, last, sums = self._episodes.pop(seed, (call, -1, None))
            follows = call > 0 and last == call - 1
            firsts.append(first if follows else call)
            known.append(sums if follows else None)
        # calls that foresaw each of the next steps before this one
        before_n = torch.tensor(calls) - torch.tensor(firsts)
        earlier_nC = (self.chunk - 1 - torch.arange(self.chunk)).minimum(before_n[:, None])
        shares = {"each": self.weights_C[earlier_nC], "whole": self.weights_C.cumsum(0)[earlier_nC[:, 0]]}
        shares = upload(shares, predicted_nCD.device)
        sums_nCD = predicted_nCD.double() * shares["each"][..., None]
        for n, sums in enumerate(known):
            if sums is not None:
                sums_nCD[n, :-1] += sums[1:]
        for n, seed in enumerate(seeds):
            self._episodes[seed] = (firsts[n], calls[n], sums_nCD[n].clone())  # which outlives those of the other episodes
        while len(self._episodes) > max(EPISODES, len(seeds)):
            self._episodes.popitem(last=False)
        return (sums_nCD[:, 0] / shares["whole"][:, None]).to(predicted_nCD.dtype)

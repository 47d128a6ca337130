"""The experts that tokens go through while the embedded sampler reads them.

P prompts, N rows, S tokens in them, M layers with experts, K experts of a token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from mmrl.policies.vlm.experts import RouterPass, routed, watched
from mmrl.policies.vlm.routes import UNKNOWN, Routes


class RouteRecorder:
    """Notes the experts of completions that are decoded together, a group's next to each other. A token keeps those with which it
    was read first, also if the cache is computed anew with other weights."""

    def __init__(self, model: torch.nn.Module, group_size: int) -> None:
        self.routers, self.group_size = watched(model), group_size
        self.prompts: list[torch.Tensor] = []
        """int16 [S, M, K] of each prompt."""
        self.steps: list[tuple[torch.Tensor, torch.Tensor]] = []
        """(completions, int16 [N, M, K]) of each token: the first of all completions, the second, and so on."""

    @contextlib.contextmanager
    def prompts_read(self, lengths: Sequence[int]) -> Iterator[None]:
        """Context of a pass over all prompts, padded on the left."""
        with routed(RouterPass(self.routers)) as now:
            yield
        if not self.prompts:
            routes_PSMK = _joined(now, len(lengths))
            self.prompts = [routes_SMK[-length:] for routes_SMK, length in zip(routes_PSMK, lengths, strict=True)]

    @contextlib.contextmanager
    def tokens_read(self, row_N: torch.Tensor, first: int) -> Iterator[None]:
        """Context of a pass over tokens of these completions, from number `first` on."""
        with routed(RouterPass(self.routers)) as now:
            yield
        routes_NSMK = _joined(now, len(row_N))
        self.steps += [(row_N, routes_NSMK[:, k - first]) for k in range(len(self.steps), first + routes_NSMK.shape[1])]

    def routes(self, lengths: Sequence[int]) -> list[Routes]:
        """Of each completion, whose tokens are so many: of the last one, nothing is told."""
        prompts = [prompt_SMK.to("cpu", copy=True) for prompt_SMK in self.prompts]  # each by itself, for engines elsewhere
        after_NSMK = prompts[0].new_full((len(lengths), len(self.steps), *prompts[0].shape[1:]), UNKNOWN)
        if self.steps:
            there = torch.cat([routes_NMK for _, routes_NMK in self.steps]).cpu()
            rows = torch.cat([row_N for row_N, _ in self.steps]).cpu()
            counts = torch.tensor([len(row_N) for row_N, _ in self.steps])
            after_NSMK[rows, torch.arange(len(self.steps)).repeat_interleave(counts)] = there
        return [
            Routes(prompts[n // self.group_size], after_NSMK[n, : max(length - 1, 0)].clone()) for n, length in enumerate(lengths)
        ]


def _joined(now: RouterPass, rows: int) -> torch.Tensor:
    """int16 [rows, S, M, K]."""
    routes_TMK = torch.stack(now.taken, 1)
    return routes_TMK.view(rows, -1, *routes_TMK.shape[1:])

"""Values of targets, for passes over a step's targets that divide them into other micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmrl.policies.batches import Batch


def table(batches: Sequence[Batch], values: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    """The value of every target by rollout and place, [N, T]. values: [L] for each batch and micro-batch."""
    lengths_N = batches[0].lengths_N
    table_NT = torch.zeros(len(lengths_N), int(lengths_N.max()) if len(lengths_N) else 0, device=lengths_N.device)
    for batch, known in zip(batches, values, strict=True):
        for micro, values_L in zip(batch.micro, known, strict=True):
            table_NT[micro.rollout_L, micro.place_L] = values_L.to(table_NT)
    return table_NT


def dealt(table_NT: torch.Tensor, batches: Sequence[Batch]) -> list[list[torch.Tensor]]:
    """What `table` had, for each batch and micro-batch of another division."""
    return [[table_NT[m.rollout_L, m.place_L] for m in b.micro] for b in batches]

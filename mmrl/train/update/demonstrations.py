"""Gold completions whose likelihood is part of an rl stage's loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mmrl.algorithms.loss import average
from mmrl.compute.ranks import all_reduce_sum
from mmrl.policies.batches import Batch
from mmrl.policies.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Gold completions whose likelihood is part of the loss."""

    batch: Batch
    weight: float
    """Weight of their loss; the algorithm's loss has weight 1 - `weight`."""
    uncertain: bool = False
    """Weigh each token by p (1 - p), with its probability p (Zhang et al., CHORD, equation 9)."""


def imitate(policy: Policy, gold: Demonstrations, backward: Callable[[torch.Tensor], None]) -> dict[str, float]:
    """Add the gradients of their likelihood. backward: adds those of a loss. Returns metrics, of all ranks."""
    batch, loss = gold.batch, torch.zeros((), device=policy.device)
    for micro in batch.micro:
        logprobs_L = policy.outputs(micro, 1.0).logprobs_L
        likely_L = logprobs_L.detach().exp()
        loss_L = -logprobs_L * (likely_L * (1 - likely_L) if gold.uncertain else 1.0)
        share = gold.weight * average(loss_L, micro, batch, "token")
        backward(share)
        loss += share.detach()
    return {"imitation/loss": all_reduce_sum(loss).item(), "imitation/weight": gold.weight}

"""Inputs of losses, and what some take besides."""

import torch

from mmrl.algorithms.loss import LossInputs

LENGTHS, ROLLOUT = torch.tensor([2, 1, 3]), torch.tensor([0, 0, 1, 2, 2, 2])
"""Three rollouts of six tokens."""


def made(logprobs, old, advantages, rollout=ROLLOUT, lengths=LENGTHS):
    return LossInputs(
        logprobs_L=torch.as_tensor(logprobs),
        old_logprobs_L=torch.as_tensor(old),
        advantages_L=torch.as_tensor(advantages),
        rollout_L=rollout,
        lengths_N=lengths,
    )


def whole_batch(inputs):
    """`batch_M3` and `places_L` of a batch with a single micro-batch, whose tokens come in another order."""
    order = torch.randperm(len(inputs.rollout_L), generator=torch.Generator().manual_seed(1))
    columns = (inputs.logprobs_L.detach(), inputs.old_logprobs_L, inputs.advantages_L)
    return torch.stack(columns, 1)[order], order.argsort()


def of_groups(inputs):
    """`log_ratios_N`, `groups_N` and `credits_N` of two groups of four."""
    n, moved = len(inputs.lengths_N), inputs.logprobs_L.detach() - inputs.old_logprobs_L
    ratios, credits = (torch.zeros(n, dtype=x.dtype).index_add(0, inputs.rollout_L, x) for x in (moved, inputs.advantages_L))
    return ratios, torch.arange(n) // 4, credits / inputs.lengths_N


def random_batch(seed, n=400, moved=0.1):
    """Tokens in rollouts of four, which have moved by so many nats."""
    noise = torch.Generator().manual_seed(seed)
    new, far, credit = (torch.randn(n, generator=noise, dtype=torch.float64) for _ in range(3))
    new = (new - 2).requires_grad_()
    return made(new, new.detach() + moved * far, credit, torch.arange(n) // 4, torch.full((n // 4,), 4))

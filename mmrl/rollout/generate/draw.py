"""Choosing tokens by given random numbers: the same number and probabilities choose the same token, whatever is beside them."""

from __future__ import annotations

import torch

BLOCK = 1024
"""Neighbouring ids of the vocabulary whose probabilities are added up first."""


def sample_tokens(probabilities_NV: torch.Tensor, drawn_N: torch.Tensor) -> torch.Tensor:
    """int64 [N]: the first id at which the probabilities, added up, exceed that share of their sum: the inverse of the cumulative
    distribution (Devroye, Non-Uniform Random Variate Generation, section III.2). An id whose probability is 0 is never chosen.

    probabilities_NV: float32, not normalised. drawn_N: float64 in [0, 1). The host waits for nothing. On a CPU all sums are
    float64; elsewhere see `sample_by_blocks`."""
    if probabilities_NV.device.type != "cpu":
        return sample_by_blocks(probabilities_NV, drawn_N)
    return _first_above(probabilities_NV.double().cumsum(-1), drawn_N)


def sample_by_blocks(probabilities_NV: torch.Tensor, drawn_N: torch.Tensor) -> torch.Tensor:
    """`sample_tokens` without a float64 number for each id: blocks of the vocabulary are added up in float32, their sums in
    float64, and then the ids of the block that was chosen. The bounds between ids move by float32's rounding of a block's sum, so
    another id is chosen only where a number falls on that sliver beside a bound."""
    V = probabilities_NV.shape[1]
    whole = V // BLOCK * BLOCK
    sums_NB = probabilities_NV[:, :whole].unflatten(1, (-1, BLOCK) if whole else (0, BLOCK)).sum(-1)
    if whole < V:
        sums_NB = torch.cat([sums_NB, probabilities_NV[:, whole:].sum(-1, keepdim=True)], 1)
    ends_NB = sums_NB.double().cumsum(-1)
    block_N = _first_above(ends_NB, drawn_N)
    block_N1 = block_N[:, None]
    sum_N = sums_NB.gather(1, block_N1)[:, 0].double()
    begin_N = torch.where(block_N > 0, ends_NB.gather(1, (block_N1 - 1).clamp_min(0))[:, 0], 0.0)
    share_N = ((drawn_N * ends_NB[:, -1] - begin_N) / sum_N).clamp(0, 1)
    ids_NK = block_N1 * BLOCK + torch.arange(BLOCK, device=block_N.device)
    inside_NK = probabilities_NV.gather(1, ids_NK.clamp_max(V - 1)).where(ids_NK < V, 0.0)
    return block_N * BLOCK + _first_above(inside_NK.double().cumsum(-1), share_N)


def _first_above(ends_NK: torch.Tensor, share_N: torch.Tensor) -> torch.Tensor:
    """int64 [N]: the first entry of cumulative sums that exceeds this share of the last one, at most the last that is larger than
    the one before it, as a share that is rounded may be all of it."""
    total_N1 = ends_NK[:, -1:].contiguous()
    found_N1 = torch.searchsorted(ends_NK, share_N[:, None] * total_N1, right=True)
    return torch.minimum(found_N1, torch.searchsorted(ends_NK, total_N1))[:, 0]

"""Clipped objectives whose bounds follow from all tokens of the batch. Pure functions of tensors."""

from __future__ import annotations

import torch

from mmrl.algorithms.loss import LossInputs, finite_ratio, pessimistic
from mmrl.api.tokens import DISCRETE, for_tokens

JUST_BELOW = 1 - 1e-5
"""Of the square at the bound, so that its own token loses its gradient whatever is rounded."""


@for_tokens(*DISCRETE)
def second_moment_surrogate(
    inputs: LossInputs, batch_M3: torch.Tensor, *, budget: float = 0.04, least_low: float = 0.3, least_high: float = 0.5
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped objective with bounds exp(-t) and exp(t), as wide as the second moment of the log-ratios allows: M2PO (Zheng et
    al., Prosperity before Collapse, arXiv 2510.01161, and its code).

    Only tokens count that have moved in the direction of their advantage, as clipping reaches no others. t is the largest
    of their log-ratios, in size, with which the mean square of the log-ratios, clipped at t, is below the budget. If the mean
    square itself is, nothing is clipped. So a few tokens are clipped that have moved far, and not the many that have moved a
    little, as when completions are old.

    batch_M3: see `mmrl.algorithms.loss.MEASURED`. budget: of the mean square, in nats squared, above 0. least_low: the lower
    bound of the ratio is at most 1 - least_low. least_high: the upper bound of the ratio is at least 1 + least_high.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where clipping removes the gradient.
    """
    new_M, old_M, advantages_M = batch_M3.unbind(1)
    moved_M = new_M - old_M
    squares = (moved_M[moved_M * advantages_M > 0] ** 2).sort().values
    far = most_moved(squares, budget)
    ratio_L = finite_ratio(inputs.logprobs_L - inputs.old_logprobs_L)
    low, high = (-far).exp().clamp_max(1 - least_low), far.exp().clamp_min(1 + least_high)
    return pessimistic(ratio_L, ratio_L.clamp(low, high), inputs.advantages_L)


def most_moved(squares: torch.Tensor, budget: float) -> torch.Tensor:
    """A number: the root of the largest of these squares, in rising order, at which they can be clipped so that their mean is
    below the budget; inf if it is without clipping, 0 if it is with none of them."""
    if not len(squares) or squares.mean() <= budget:
        return squares.new_tensor(torch.inf)
    after = torch.arange(len(squares) - 1, -1, -1, device=squares.device)
    sums = squares.cumsum(0) + squares * after  # of all, clipped at each
    fit = int((sums < budget * len(squares)).sum())
    return (squares[fit - 1] * JUST_BELOW).sqrt() if fit else squares.new_zeros(())


@for_tokens(*DISCRETE)
def balanced_surrogate(
    inputs: LossInputs,
    batch_M3: torch.Tensor,
    *,
    positive_share: float = 0.5,
    lower_start: float = 0.6,
    lower_max: float = 0.9,
    upper_start: float = 1.2,
    upper_max: float = 3.0,
    step: float = 0.05,
    dual_clip: float = 3.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped objective with bounds that move until positive advantages are at least a share of the objective: BAPO (Xi et
    al., Balanced Policy Optimization with Adaptive Clipping, arXiv 2510.18927, and its code).

    A token's part is the size of its clipped ratio times its advantage. Where the positive ones have too small a share, the lower
    bound rises, which leaves out unlikely tokens of bad rollouts, and then the upper one, step by step, which admits unlikely
    tokens of good ones. Both keep up the entropy. (The code raises the lower bound in steps too. What is clipped counts as much
    as the bound, so that the share falls meanwhile, and the lower bound always ends at its maximum.)

    batch_M3: see `mmrl.algorithms.loss.MEASURED`. positive_share: smallest share of positive advantages, 0..1 (its code has the
    odds, 1 for 0.5). lower_start: lower bound of the ratio where the share suffices; this value and the next three are the
    paper's. lower_max: lower bound where it doesn't. upper_start: upper bound of the ratio where the share suffices, at least 1.
    upper_max: where the upper bound stops. step: of the upper bound, above 0. dual_clip: upper bound of the ratio for negative
    advantages, above 1; 0 is off.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where clipping removes the gradient.
    """
    new_M, old_M, advantages_M = batch_M3.unbind(1)
    ratio_M, gains_M, losses_M = finite_ratio(new_M - old_M), advantages_M.clamp_min(0.0), (-advantages_M).clamp_min(0.0)

    def balanced(lower: float, upper: float) -> bool:
        gained, lost = (ratio_M.clamp_max(upper) * gains_M).sum(), (ratio_M.clamp_min(lower) * losses_M).sum()
        return bool(gained >= positive_share * (gained + lost))

    lower, upper = lower_start, upper_start
    if not balanced(lower, upper):
        lower = max(lower, lower_max)
        while upper < upper_max and not balanced(lower, upper):
            upper = min(upper + step, upper_max)
    ratio_L = finite_ratio(inputs.logprobs_L - inputs.old_logprobs_L)
    return pessimistic(ratio_L, ratio_L.clamp(lower, upper), inputs.advantages_L, dual_clip)

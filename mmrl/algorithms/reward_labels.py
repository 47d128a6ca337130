"""REAL: rewards as the labels of a classification (Zhai et al., Rewards as Labels: Revisiting RLVR from a Classification
Perspective, arXiv 2602.05630; ms-swift, `loss_type real`)."""

from __future__ import annotations

import torch

from mmrl.algorithms.loss import LossInputs


def reward_labels(
    inputs: LossInputs, log_ratios_N: torch.Tensor, groups_N: torch.Tensor, credits_N: torch.Tensor, *, temperature: float = 0.5
) -> tuple[torch.Tensor, torch.Tensor]:
    """log(1 + sum exp(s-)) + log(1 + sum exp(-s+)) of each group, with s the mean log-ratio of a rollout over temperature; s+ are
    those with a positive credit, s- the others. A group of one kind teaches nothing.

    The gradient by a rollout's score is a share of at most 1 of its kind, so that neither many rollouts of a kind nor a single
    extreme one can dominate. It is known in closed form from the scores of all.

    Meant for `normalise="constant"` with constant 1, with which the mean over rollouts is that over groups of equal size. The
    others as in `implicit_critic`. temperature: above 0.

    Returns (loss_L, clipped_L): the group's loss in equal parts for the tokens of each of its rollouts; clipped_L is 0.
    """
    valid_N, lengths_N = ~credits_N.isnan(), inputs.lengths_N.clamp_min(1)
    right_N = (credits_N > 0) & valid_N
    sign_N = torch.where(right_N, -1.0, 1.0)
    scores_N = sign_N * log_ratios_N / lengths_N / temperature
    alike_NN = (groups_N[:, None] == groups_N) & valid_N & valid_N[:, None]
    of_kind_NN = {kind: alike_NN & (right_N == kind) for kind in (True, False)}
    mixed_N = of_kind_NN[True].any(1) & of_kind_NN[False].any(1)
    sums_N = {kind: _log_one_plus(scores_N, of_NN) for kind, of_NN in of_kind_NN.items()}
    share_N = (scores_N - torch.where(right_N, sums_N[True], sums_N[False])).exp()  # the slope of its kind's logarithm
    slopes_N = alike_NN.sum(1) * sign_N * share_N / lengths_N / temperature
    each_N = (sums_N[True] + sums_N[False]) / lengths_N
    moved_L = inputs.logprobs_L - inputs.logprobs_L.detach()  # 0, with the gradient of log p
    loss_L = slopes_N[inputs.rollout_L] * moved_L + each_N[inputs.rollout_L]
    return loss_L * mixed_N[inputs.rollout_L], torch.zeros_like(moved_L, dtype=torch.float32)


def _log_one_plus(scores_N: torch.Tensor, of_NN: torch.Tensor) -> torch.Tensor:
    """[N]: log(1 + the sum of exp(score) over the rollouts of each row)."""
    inside_NN = scores_N.expand(len(scores_N), -1).masked_fill(~of_NN, -torch.inf)
    return torch.cat([inside_NN, scores_N.new_zeros(len(scores_N), 1)], 1).logsumexp(1)

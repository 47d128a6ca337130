"""Losses per token, and their average. Pure functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from mmrl.api.tokens import ACTING, DISCRETE, TokenKind, for_tokens
from mmrl.policies.batches import Batch, MicroBatch

if TYPE_CHECKING:
    from mmrl.policies.batches import ActionMicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The inputs of a loss function for a micro-batch; all float32 [L] unless noted otherwise."""

    logprobs_L: torch.Tensor
    """Log-probabilities under the current weights, with gradient."""
    old_logprobs_L: torch.Tensor
    """Log-probabilities under the weights before the step's first update."""
    advantages_L: torch.Tensor
    rollout_L: torch.Tensor
    """int64 rollout of each token."""
    lengths_N: torch.Tensor
    """int64 trained tokens of each rollout."""


LossFunction = Callable[..., tuple[torch.Tensor, ...]]
"""(inputs, *, settings) -> (loss_L, clipped_L) or (loss_L, clipped_L, chosen_L), all float32 [L]; clipped_L is 1.0 where clipping
had an effect, and chosen_L where the loss treats a token in a way of its own. Further positional parameters are among
`MEASURED`."""
MEASURED = {
    "mean_log_ratio_L": "float32 [L], without gradient; in the state before the trained token, the mean over all tokens of the "
    "vocabulary of their log-probability under the current weights less that before the step's first update",
    "log_ratios_N": "float32 [N], without gradient; the sum over each rollout's tokens of their log-probability under the "
    "current weights less that before the step's first update; 0 for rollouts of other mini-batches",
    "groups_N": "int64 [N]; rollouts with the same number answer the same prompt",
    "credits_N": "float32 [N]; the advantage of each rollout, the mean of its tokens'; NaN for those of other mini-batches and "
    "those that are left out",
    "batch_M3": "float32 [M, 3], without gradient; of all M trained tokens of the batch, on all ranks, the log-probability under "
    "the current weights, the old one as in LossInputs, and the credit",
    "places_L": "int64 [L]; where the tokens of the micro-batch are among those M",
    "through_call_L": "float32 [L]; how far through its call of the policy a target is: 0 the first, 1 the last or only one; for "
    "policies that act alone",
}
"""Name -> what a loss may also ask for. The first two cost a forward pass in each update but a step's first, and `batch_M3` one
in the first as well. `through_call_L` is for policies that act, `batch_M3` and `places_L` for tokens that have probabilities, the
others for policies that write."""


def measured_of(name: str) -> frozenset[TokenKind]:
    """The kinds of tokens of which one of `MEASURED` is measured."""
    return {"through_call_L": ACTING, "batch_M3": DISCRETE, "places_L": DISCRETE}.get(name, frozenset({TokenKind.WORD}))


def finite_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    """The exponential of a log-ratio that is first kept in -20..20, as in verl: beyond there is no gradient, where that of an
    infinite ratio would be NaN."""
    return log_ratio.clamp(-20.0, 20.0).exp()


def rollout_sums(values_L: torch.Tensor, inputs: LossInputs) -> torch.Tensor:
    """[N]: the sum over each rollout's tokens."""
    return values_L.new_zeros(len(inputs.lengths_N)).index_add(0, inputs.rollout_L, values_L)


def clipped_surrogate(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Minus min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r a token's probability ratio (Schulman et al., PPO, equation 7).

    clip_low: the ratio is clipped at 1 - clip_low. clip_high: the ratio is clipped at 1 + clip_high (separate bounds: Yu et al.,
    DAPO, equation 10). dual_clip: upper bound of the ratio for negative advantages, above 1 (Ye et al., Mastering Complex
    Control in MOBA Games with Deep RL); 0 is off.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where clipping removes the gradient.
    """
    ratio_L = finite_ratio(inputs.logprobs_L - inputs.old_logprobs_L)
    return pessimistic(ratio_L, ratio_L.clamp(1 - clip_low, 1 + clip_high), inputs.advantages_L, dual_clip)


@for_tokens(TokenKind.WORD)
def sequence_surrogate(
    inputs: LossInputs, *, clip_low: float = 3e-4, clip_high: float = 4e-4, per_token: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped objective with one ratio per rollout (Zheng et al., GSPO, equations 5 and 7).

    This ratio is the exponential of the mean log-ratio of the rollout's tokens. Its bounds are much narrower than a token's, and
    the gradient reaches every token through the mean. Meant for `normalise="sequence"`, and for policies that write: all tokens
    of a rollout must be in one micro-batch.

    clip_low: the ratio is clipped at 1 - clip_low. clip_high: the ratio is clipped at 1 + clip_high. per_token: GSPO-token
    (equations 13 and 14): a token's gradient reaches itself alone, which differs where the tokens of a rollout have different
    advantages.

    Returns (loss_L, clipped_L): the rollout's loss and clipping for each of its tokens.
    """
    sums_N = rollout_sums(inputs.logprobs_L - inputs.old_logprobs_L, inputs)
    mean_L = (sums_N / inputs.lengths_N.clamp_min(1))[inputs.rollout_L]
    if per_token:
        mean_L = mean_L.detach() + inputs.logprobs_L - inputs.logprobs_L.detach()
    ratio_L = finite_ratio(mean_L)
    return pessimistic(ratio_L, ratio_L.clamp(1 - clip_low, 1 + clip_high), inputs.advantages_L)


def bounded_surrogate(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, bound: float = 1e3
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped objective with the log-ratio bounded before the exponential: StableReinforce's pre-clip (R1-Reward).

    clip_low: the ratio is clipped at 1 - clip_low. clip_high: the ratio is clipped at 1 + clip_high. bound: the ratio is first
    clipped to 1 / bound..bound.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where either clipping removes the gradient.
    """
    log_ratio_L = inputs.logprobs_L - inputs.old_logprobs_L
    ratio_L = bounded_ratio(log_ratio_L, bound)
    loss_L, clipped_L = pessimistic(ratio_L, ratio_L.clamp(1 - clip_low, 1 + clip_high), inputs.advantages_L)
    return loss_L, clipped_L.maximum((log_ratio_L.abs() > math.log(bound)).float())


def bounded_ratio(log_ratio_L: torch.Tensor, bound: float = 1e3) -> torch.Tensor:
    """The exponential of log-ratios that are first clipped to -log(bound)..log(bound), so that it can't overflow."""
    return log_ratio_L.clamp(-math.log(bound), math.log(bound)).exp()


@for_tokens(*DISCRETE)
def adaptive_surrogate(
    inputs: LossInputs, *, clip_low: float = 0.16, clip_high: float = 0.2, limit: float = 10.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped objective with wider bounds for less likely tokens (Yang et al., DCPO, equation 4).

    With the token's old probability q, the bounds are 1/2 + sqrt(max(1 - 4 clip_low / q, 0)) / 2 and
    1/2 + sqrt(1 + 4 clip_high / q) / 2. clip_low: bound of (1 - r) p, where p is the token's new probability. clip_high: bound of
    (r - 1) p. limit: upper bound of the ratio for advantages of both signs (section A.6).

    Returns (loss_L, clipped_L): clipped_L is 1.0 where clipping removes the gradient.
    """
    rarity_L = (-inputs.old_logprobs_L).clamp_max(80.0).exp()  # 1 / q, finite where q is 0 in float32
    low_L = 0.5 + (1 - 4 * clip_low * rarity_L).clamp_min(0).sqrt() / 2
    high_L = (0.5 + (1 + 4 * clip_high * rarity_L).sqrt() / 2).clamp_max(limit)
    ratio_L = finite_ratio(inputs.logprobs_L - inputs.old_logprobs_L)
    return pessimistic(ratio_L, ratio_L.clamp(low_L, high_L), inputs.advantages_L, dual_clip=limit)


def pessimistic(
    ratio_L: torch.Tensor, bounded_L: torch.Tensor, advantages_L: torch.Tensor, dual_clip: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(minus the smaller of ratio * advantage and bounded ratio * advantage, 1.0 where that removes the gradient); all [L]."""
    plain_L, clipped_L = ratio_L * advantages_L, bounded_L * advantages_L
    cut_L, objective_L = clipped_L < plain_L, torch.minimum(plain_L, clipped_L)
    if dual_clip:
        floor_L = dual_clip * advantages_L
        low_L = (advantages_L < 0) & (objective_L < floor_L)
        cut_L, objective_L = cut_L | low_L, objective_L.where(~low_L, floor_L)
    return -objective_L, cut_L.float()


def clipped_weight(inputs: LossInputs, *, clip_low: float = 1.0, clip_high: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Minus clip(r, 1 - clip_low, 1 + clip_high) A log p, no gradient through the ratio r (MiniMax-M1, CISPO, equations 4 and 5).

    Clipping limits a token's weight but never removes its gradient. clip_low: the weight is at least 1 - clip_low; 1 means no
    lower bound, as in the paper. clip_high: the weight is at most 1 + clip_high.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where the weight is at a bound.
    """
    ratio_L = finite_ratio((inputs.logprobs_L - inputs.old_logprobs_L).detach())
    weight_L = ratio_L.clamp(1 - clip_low, 1 + clip_high)
    return -weight_L * inputs.advantages_L * inputs.logprobs_L, (weight_L != ratio_L).float()


def negative_aware(inputs: LossInputs, *, negative_weight: float = 1.0, least: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Supervised learning on correct rollouts, and on what incorrect ones say of an implicit policy: NFT (Chen et al., Bridging
    Supervised Learning and Reinforcement Learning in Math Reasoning, arXiv 2505.18116).

    With the token's ratio r and the prompt's share p of correct rollouts, -(1 - p) log r for a correct rollout and
    -(1 - p) log max((1 - p r) / (1 - p), least) for an incorrect one; the gradient passes through the maximum as if it weren't
    there. At r = 1 it is that of the advantages 1 - p and -p, which `success_relative` gives and from which p is read. As in
    the published code p is clipped to 0.02..0.98, and log r to at most 10.

    negative_weight: weight of incorrect rollouts; 0 is rejection sampling (RFT). least: lower bound of the implicit policy's
    ratio, above 0; 1 as in the published configuration.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where the lower bound has an effect.
    """
    correct_L = inputs.advantages_L > 0
    share_L = torch.where(correct_L, 1 - inputs.advantages_L, -inputs.advantages_L).clamp(0.02, 0.98)
    log_ratio_L = (inputs.logprobs_L - inputs.old_logprobs_L).clamp(max=10.0)
    ratio_L = log_ratio_L.exp()  # its logarithm would have no gradient where it is 0
    implicit_L = (1 - share_L * ratio_L) / (1 - share_L)
    low_L = ~correct_L & (implicit_L < least)
    implicit_L = implicit_L.detach().clamp_min(least) + (implicit_L - implicit_L.detach())  # exact, however far below
    loss_L = -(1 - share_L) * torch.where(correct_L, log_ratio_L, negative_weight * implicit_L.log())
    taught_L = inputs.advantages_L != 0
    return loss_L * taught_L, (low_L & taught_L).float()


def uniform_valuation(
    inputs: LossInputs, mean_log_ratio_L: torch.Tensor, *, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q - (A + next q))^2: the values of the policy that draws uniformly, ROVER (He et al., Random Policy Valuation is Enough,
    arXiv 2509.24981, and its code).

    q is temperature times a token's log-ratio, and next q the mean of q over all tokens in the state after it, 0 after the last;
    there is no gradient through the target. At the step's first update both are 0, and the gradient is twice that of the policy
    gradient.

    temperature: rho, the unit of values. Returns (loss_L, clipped_L); clipped_L is 0.
    """
    value_L = temperature * (inputs.logprobs_L - inputs.old_logprobs_L)
    follows_L = torch.zeros_like(inputs.rollout_L, dtype=torch.bool)
    follows_L[:-1] = inputs.rollout_L[1:] == inputs.rollout_L[:-1]
    next_L = (temperature * mean_log_ratio_L.roll(-1)).where(follows_L, 0.0)
    return (value_L - (inputs.advantages_L + next_L).detach()) ** 2, torch.zeros_like(value_L, dtype=torch.float32)


def policy_gradient(inputs: LossInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """REINFORCE: the gradient is that of -A log p (Williams, Simple Statistical Gradient-Following Algorithms, section 5).

    Its value is -A, like that of a surrogate on-policy. It has no ratio: in a second epoch, completions of earlier weights would
    count as if the current weights had sampled them.
    """
    score_L = (inputs.logprobs_L - inputs.logprobs_L.detach()).exp()  # 1, with the gradient of log p
    return -score_L * inputs.advantages_L, torch.zeros_like(score_L, dtype=torch.float32)


def negative_log_likelihood(inputs: LossInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Supervised learning: minus the log-probability of each token, weighted by its advantage (1 for demonstrations)."""
    return -inputs.logprobs_L * inputs.advantages_L, torch.zeros_like(inputs.logprobs_L, dtype=torch.float32)


def probability_weighted_likelihood(inputs: LossInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """-p log p A with no gradient through the weight p, the token's own probability: dynamic fine-tuning (Wu et al., DFT,
    arXiv 2508.05629). The gradient is that of -p A, so an unlikely gold token has a small one, not a large one.

    Returns (loss_L, clipped_L); clipped_L is 0.
    """
    loss_L, clipped_L = negative_log_likelihood(inputs)
    return loss_L * inputs.logprobs_L.detach().exp(), clipped_L


def average(
    values_L: torch.Tensor,
    micro: MicroBatch | ActionMicroBatch,
    batch: Batch,
    normalise: Literal["token", "sequence", "constant"],
    constant: float = 1.0,
) -> torch.Tensor:
    """A micro-batch's share of the batch mean. The shares of all micro-batches and ranks sum to it, for any division of the
    batch.

    token: every trained token has the same weight. sequence: every rollout has the same weight, and so have its tokens.
    constant: every rollout counts with the sum over its tokens divided by a constant (Liu et al., Dr. GRPO, section 3.2).
    """
    if normalise == "token":
        return values_L.sum() / max(batch.num_tokens, 1)
    if normalise == "constant":
        return values_L.sum() / ((batch.num_rollouts or 1) * constant)
    return (values_L / batch.lengths_N[micro.rollout_L]).sum() / (batch.num_rollouts or 1)

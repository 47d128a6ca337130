"""Credit from a policy that was told the answer: itself, with the gold completion or a success of its own in the prompt."""

from __future__ import annotations

import torch

from mmrl.algorithms.advantage import group_relative
from mmrl.api.tokens import TokenKind, for_tokens


@for_tokens(TokenKind.WORD)
def evidence_weighted(
    rewards_N: torch.Tensor,
    groups_N: torch.Tensor,
    told_logprobs_NT: torch.Tensor,
    logprobs_NT: torch.Tensor,
    mask_NT: torch.Tensor,
    progress_N: torch.Tensor,
    *,
    weight: float = 0.5,
    last_weight: float = 0.5,
    weight_clip: float = 0.2,
    only_negative: bool = False,
) -> torch.Tensor:
    """The advantage A of `group_relative`, more of it for the tokens that knowing the answer speaks for if A is positive, and
    against if it is negative: RLSD (Yang et al., Self-Distilled RLVR, arXiv 2604.03128; `apply_rlsd_reweight` of ms-swift's
    `rl_core/advantage.py`).

    A token has A ((1 - w) + w clip(e, 1 - weight_clip, 1 + weight_clip)), where e is its probability with the answer in the
    prompt over that without if A > 0, and the inverse if A < 0. The sign of A stays, since e is positive.

    rewards_N: float, NaN if the score failed. groups_N: int64. The next two float, mask_NT bool: trained tokens. told_logprobs_NT
    is NaN in rollouts whose prompt has no gold completion, which have the advantage A. progress_N: 0..1. weight: w at the
    beginning of the stage, the share of a token's advantage that is multiplied by its ratio of probabilities with and without the
    answer. last_weight: this share at the stage's end, linear in between. weight_clip: the ratio is clipped at 1 - weight_clip
    and 1 + weight_clip. only_negative: leave rollouts with a positive advantage as they are.

    Returns float32 [N, T]: 0 for tokens that aren't trained, NaN in rollouts whose reward is NaN.
    """
    advantage_N1 = group_relative(rewards_N, groups_N).double()[:, None]
    evidence_NT = (advantage_N1.sign() * (told_logprobs_NT.double() - logprobs_NT.double())).exp().nan_to_num(1.0)
    mixed_N1 = (weight + (last_weight - weight) * progress_N.double())[:, None]
    if only_negative:
        mixed_N1 = mixed_N1.where(advantage_N1 < 0, 0.0)
    factor_NT = 1 - mixed_N1 + mixed_N1 * evidence_NT.clamp(1 - weight_clip, 1 + weight_clip)
    return (advantage_N1 * factor_NT).where(mask_NT | rewards_N.isnan()[:, None], 0.0).float()


@for_tokens(TokenKind.WORD)
def gated(
    rewards_N: torch.Tensor,
    groups_N: torch.Tensor,
    told_logprobs_NT: torch.Tensor,
    logprobs_NT: torch.Tensor,
    mask_NT: torch.Tensor,
    *,
    told_weight: float = 0.1,
    sharpness: float = 5.0,
) -> torch.Tensor:
    """The advantage of `group_relative`, plus told_weight times a gate that is open for the tokens which knowing the answer makes
    more likely: SDAR (Lu et al., Self-Distilled Agentic RL, arXiv 2605.15155; `compute_sdar_loss` of ms-swift's
    `rl_core/advantage.py`).

    The gate is the sigmoid of sharpness times a token's log-probability with the answer in the prompt less that without. GRPO's
    loss plus told_weight times SDAR's, the mean over tokens of gate times that difference, has this gradient at the first update
    of a step; in later ones the gate stays and the ratio's bounds hold for both. Without a gold completion nobody knows better,
    and the gate is closed.

    The first five as in `evidence_weighted`. told_weight: what a token gains whose gate is wide open. sharpness: 0 gives all
    tokens the same, one half of told_weight.

    Returns float32 [N, T]: 0 for tokens that aren't trained, NaN in rollouts whose reward is NaN.
    """
    gate_NT = (sharpness * (told_logprobs_NT.double() - logprobs_NT.double())).sigmoid().nan_to_num(0.0)
    found_NT = group_relative(rewards_N, groups_N).double()[:, None] + told_weight * gate_NT
    return found_NT.where(mask_NT | rewards_N.isnan()[:, None], 0.0).float()


@for_tokens(TokenKind.WORD)
def distilled(
    rewards_N: torch.Tensor,
    groups_N: torch.Tensor,
    shown_logprobs_NT: torch.Tensor,
    logprobs_NT: torch.Tensor,
    mask_NT: torch.Tensor,
    *,
    share: float = 1.0,
) -> torch.Tensor:
    """A token's log-probability after a prompt that shows a success of the group, less that without: SDPO (Huebotter et al.,
    Reinforcement Learning via Self-Distillation, arXiv 2601.20802; TRL's `distillation_mode = "sampled_token"`).

    The policy gradient with it is that of the reverse KL to the policy that saw the success, which costs no reward model and has
    credit for each token. With `clipped_weight` its first update is TRL's, whose difference follows the policy in later ones.

    The first five as in `evidence_weighted`; shown_logprobs_NT is NaN in rollouts whose group has no other success. share: of
    this credit; the rest is the advantage of `group_relative`, which is all that rollouts without another success have.

    Returns float32 [N, T]: 0 for tokens that aren't trained, NaN in rollouts whose reward is NaN, and with a share of 1 in those
    without another success, which are left out.
    """
    gain_NT = shown_logprobs_NT.double() - logprobs_NT.double()
    unknown_N1 = rewards_N.isnan()[:, None]
    if share < 1:
        gain_NT = share * gain_NT.nan_to_num(0.0) + (1 - share) * group_relative(rewards_N, groups_N).double()[:, None]
    else:
        unknown_N1 = unknown_N1 | gain_NT.isnan().any(1, keepdim=True)
    return gain_NT.where(mask_NT, 0.0).masked_fill(unknown_N1, torch.nan).float()

"""Reward shaping of published systems: rewards from lengths, steps and other rewards."""

from __future__ import annotations

import math
from typing import Literal

import torch

ROUNDING = 1e-9
"""By how much a value may miss the mean of equal ones."""


def overlong_penalty(lengths_N: torch.Tensor, *, max_length: float, buffer: float, factor: float = 1.0) -> torch.Tensor:
    """0 up to max_length - buffer, then linear down to -factor at max_length: DAPO (Yu et al., equation 13).

    lengths_N: tokens of each completion. buffer: tokens, above 0. Beyond max_length, which a sampler with this limit never
    exceeds, the line continues, as in verl; in the paper the penalty stays at -factor.

    Returns float64 [N], added to the reward.
    """
    over_N = lengths_N.double() - (max_length - buffer)
    return -(over_N / buffer).clamp_min(0) * factor


def cosine_length(
    lengths_N: torch.Tensor, *, max_length: float = 1024, shortest: float = 1.0, longest: float = 0.5
) -> torch.Tensor:
    """Half a cosine from `shortest` at 0 tokens to `longest` at max_length: VLM-R1's length reward, as in its code.

    Two oddities of the code are kept: it intends to treat wrong answers differently but overwrites their accuracy, so correctness
    doesn't matter; and beyond max_length the cosine rises again, back to `shortest` at twice that length.

    Returns float64 [N].
    """
    return shortest - (shortest - longest) * (1 - (lengths_N.double() * math.pi / max_length).cos()) / 2


def length_bonus(
    accuracy_N: torch.Tensor,
    lengths_N: torch.Tensor,
    *,
    bonus: float = 0.2,
    low: int = 320,
    high: int = 512,
    threshold: float = 0.1,
) -> torch.Tensor:
    """`bonus` for correct rollouts of low..high tokens, if at least two of the group are correct: Video-R1 (Feng et al.).

    accuracy_N: accuracy of the group's rollouts, NaN if the score failed; above `threshold` a rollout is correct. Returns float64
    [N], NaN where the accuracy is NaN.
    """
    correct_N = accuracy_N > threshold
    paid_N = correct_N & (lengths_N >= low) & (lengths_N <= high) & (correct_N.sum() > 1)
    return (bonus * paid_N.double()).masked_fill(accuracy_N.isnan(), torch.nan)


def consistency_bonus(
    accuracy_N: torch.Tensor,
    confidence_N: torch.Tensor,
    *,
    bonus: float = 0.5,
    margin: float = 0.0,
    cap: float = 0.95,
    threshold: float = 0.1,
) -> torch.Tensor:
    """`bonus` times the accuracy for a group's correct rollouts whose answers follow from their thoughts: GRPO-CARE (Chen et al.,
    arXiv 2506.16141; github.com/TencentARC/GRPO-CARE, commit b0628fc, `grpo_trainer_ref_ema.py`).

    accuracy_N: accuracy of the group's rollouts, NaN if the score failed; a rollout is correct above `threshold` and from the
    mean on. confidence_N: probability of each answer's tokens under a reference model, their geometric mean, of which at most
    `cap` counts; it must be at least the mean of the correct ones less `margin`. 0 stands for no answer, which is never paid (in
    the released code it counts as certain). Returns float64 [N], NaN where the accuracy is NaN.
    """
    sure_N = confidence_N.double().clamp(max=cap)
    correct_N = (accuracy_N > threshold) & (accuracy_N >= accuracy_N.nanmean() - ROUNDING) & (sure_N > 0)
    mean = sure_N[correct_N].mean()  # NaN without correct ones: nothing is as large
    paid_N = correct_N & (sure_N >= mean - margin - ROUNDING)
    return (bonus * accuracy_N).where(paid_N, 0.0).masked_fill(accuracy_N.isnan(), torch.nan)


def time_proportional(raw: float, elapsed: float, limit: float) -> float:
    """The reward times the share of time that is left, 0 after the limit: MiniWoB++'s core.js, for tasks that use it.

    A negative reward shrinks too, so failing late costs less. elapsed, limit: in the same unit.
    """
    return raw * max(0.0, 1 - elapsed / limit)


def outcome(
    raw: float,
    decayed: float,
    done: bool,
    *,
    kind: Literal["binary", "thresholded", "original"] = "binary",
    threshold: float = 0.5,
) -> float:
    """The reward processors of MiniWoB++ (Farama, miniwob/reward.py).

    binary: 1 for a raw reward of 1, else -1. thresholded: 1 from `threshold` on, else -1. original: the page's reward, which
    falls with time. `binary` and `thresholded` are 0 before the episode is done.

    raw: the task's reward, -1..1. decayed: `raw` after `time_proportional`.
    """
    if kind == "original":
        return decayed
    if not done:
        return 0.0
    return 1.0 if raw >= (1.0 if kind == "binary" else threshold) else -1.0


def grasp_potential(grasped: bool, held: bool, success: bool) -> float:
    """0.1 for an object in the gripper, 0.1 more if it stays there, 1 more for success while it is there: RL4VLA (Liu et al.)."""
    return 0.1 * grasped + 0.1 * held + 1.0 * (success and grasped)


def potential_difference(potentials_NT: torch.Tensor) -> torch.Tensor:
    """The increase of the potential in each step, from 0 before the first: RL4VLA's rewards (Ng et al., with discount 1).

    They sum to the last potential, so losing and regaining potential earns nothing. Returns float64 [N, T].
    """
    return potentials_NT.double().diff(dim=1, prepend=torch.zeros(len(potentials_NT), 1, dtype=torch.float64))


def outcome_at_last(complete_N: torch.Tensor, mask_NT: torch.Tensor, *, scale: float = 5.0) -> torch.Tensor:
    """`scale` at the last trained token of each rollout that completed its task, else 0: SimpleVLA-RL (Li et al.).

    complete_N: bool or 0..1. mask_NT: bool, trained tokens. Returns float64 [N, T], 0 for rollouts without trained tokens.
    """
    later_NT = mask_NT.long().flip(1).cumsum(1).flip(1)
    return (mask_NT & (later_NT == 1)).double() * complete_N.double()[:, None] * scale

"""Rewards from lengths, steps and other rewards, as published systems shape them."""

from __future__ import annotations

import math
from typing import Literal

import torch


def overlong_penalty(lengths_N: torch.Tensor, *, max_length: float, buffer: float, factor: float = 1.0) -> torch.Tensor:
    """0 up to max_length - buffer, falling in a straight line to -factor at max_length: DAPO (Yu et al., equation 13).

    lengths_N: tokens of each completion. buffer: tokens, above 0. Longer completions than max_length, which a sampler with this
    limit doesn't give, fall on along the line, as in verl; in the paper they get -factor.

    Returns float64 [N], added to the reward.
    """
    over_N = lengths_N.double() - (max_length - buffer)
    return -(over_N / buffer).clamp_min(0) * factor


def cosine_length(
    lengths_N: torch.Tensor, *, max_length: float = 1024, shortest: float = 1.0, longest: float = 0.5
) -> torch.Tensor:
    """From `shortest` at no tokens along a half cosine to `longest` at max_length: VLM-R1's length reward, as in its code.

    Two things that one would not expect are kept: the code means to treat wrong answers otherwise, but overwrites their accuracy,
    so that correctness doesn't matter; and past max_length the cosine climbs again, back to `shortest` at twice that length.

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
    """`bonus` for correct rollouts of low..high tokens, when at least two of the group are correct: Video-R1 (Feng et al.).

    accuracy_N: of the group's rollouts, NaN where the score failed; correct is over `threshold`. Returns float64 [N], NaN where
    the accuracy is.
    """
    correct_N = accuracy_N > threshold
    paid_N = correct_N & (lengths_N >= low) & (lengths_N <= high) & (correct_N.sum() > 1)
    return (bonus * paid_N.double()).masked_fill(accuracy_N.isnan(), torch.nan)


def time_proportional(raw: float, elapsed: float, limit: float) -> float:
    """The reward times the share of the time that is left, 0 after it: MiniWoB++'s core.js, for tasks that ask for it.

    A negative reward shrinks too, so failing late is the lesser evil. elapsed, limit: in the same unit.
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

    binary: 1 for a raw reward of 1, else -1. thresholded: 1 from `threshold` on, else -1. original: what the page paid, which
    falls with time. Both of the first are 0 before the episode is done.

    raw: what the task gave, -1..1. decayed: the same after `time_proportional`.
    """
    if kind == "original":
        return decayed
    if not done:
        return 0.0
    return 1.0 if raw >= (1.0 if kind == "binary" else threshold) else -1.0


def grasp_potential(grasped: bool, held: bool, success: bool) -> float:
    """0.1 for an object in the gripper, 0.1 more once it stays there, 1 for success with it there: RL4VLA (Liu et al.)."""
    return 0.1 * grasped + 0.1 * held + 1.0 * (success and grasped)


def potential_difference(potentials_NT: torch.Tensor) -> torch.Tensor:
    """What each step adds to the potential, which is 0 before the first: as RL4VLA rewards (Ng et al., discount 1).

    They add up to the last potential, so nothing is gained by losing and regaining. Returns float64 [N, T].
    """
    return potentials_NT.double().diff(dim=1, prepend=torch.zeros(len(potentials_NT), 1, dtype=torch.float64))


def outcome_at_last(complete_N: torch.Tensor, mask_NT: torch.Tensor, *, scale: float = 5.0) -> torch.Tensor:
    """`scale` at the last trained token of each rollout that completed its task, else 0: SimpleVLA-RL (Li et al.).

    complete_N: bool or 0..1. mask_NT: bool, trained tokens. Returns float64 [N, T], 0 for rollouts without trained tokens.
    """
    later_NT = mask_NT.long().flip(1).cumsum(1).flip(1)
    return (mask_NT & (later_NT == 1)).double() * complete_N.double()[:, None] * scale

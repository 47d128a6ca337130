"""The critic: advantages and targets from its values, and its loss."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from mmrl.algorithms.advantage import standardised
from mmrl.algorithms.units import Units, by_unit


def gae(
    rewards_NT: torch.Tensor,
    values_NT: torch.Tensor,
    bootstrap_N: torch.Tensor,
    units_NT: torch.Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    whiten: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation over units of credit (Schulman et al., High-Dimensional Continuous Control, equation 16).

    A unit's advantage is the sum over it and its successors of (gamma lam)^l delta, with delta = reward + gamma * next value -
    value. A unit's reward is the sum of its tokens' rewards, its value that of its first token. After the last unit the value is
    0 if the episode terminated, and bootstrap_N if the environment truncated it.

    rewards_NT: float, rows of failed rollouts NaN. values_NT: float, the critic's value before each token. bootstrap_N: float,
    the value after the last token if the environment truncated the episode, else 0. units_NT: int64, rising along each row, -1
    for tokens without a unit.

    gamma: discount per unit. lam: 1 uses only rewards, 0 only the critic's next value. whiten: standardise the advantages over
    the batch's units; each unit counts once, however many tokens it has.

    Returns (advantages_NT, returns_NT), both float32, failed rows NaN. Every token has its unit's advantage, 0 without a unit.
    The critic's targets, advantage before whitening + value, are at each unit's first token, NaN elsewhere.
    """
    units = by_unit(rewards_NT, values_NT, bootstrap_N, units_NT)
    delta_NU = units.rewards_NU + gamma * units.next_values_NU - units.values_NU
    advantages_NU = torch.zeros_like(delta_NU)
    running_N = torch.zeros_like(bootstrap_N, dtype=torch.float64)
    for u in reversed(range(delta_NU.shape[1])):
        running_N = (delta_NU[:, u] + gamma * lam * running_N).where(units.exists_NU[:, u], 0.0)
        advantages_NU[:, u] = running_N
    return _of_units(units, advantages_NU, rewards_NT, whiten)


def bi_level_gae(
    rewards_NT: torch.Tensor,
    values_NT: torch.Tensor,
    bootstrap_N: torch.Tensor,
    units_NT: torch.Tensor,
    turns_NT: torch.Tensor,
    *,
    gamma: float = 1.0,
    turn_gamma: float = 0.95,
    lam: float = 1.0,
    whiten: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE over turns, and within each turn GAE over its units, to whose last one the turns after it are paid: Bi-Level GAE (Wang
    et al., VAGEN, arXiv 2510.16907; its code, `compute_bi_level_gae_advantage_return`).

    Upwards, a turn is worth the value of its last unit, before which most of the turn has been said: its delta is the last unit's
    reward + turn_gamma * what the next turn pays before its own last unit and is worth there - its value. Its advantage A is the
    sum over it and its successors of (turn_gamma lam)^l delta. Downwards, A is the advantage of the turn's last unit, and from
    there back to the turn's first one the advantage is that of GAE with gamma. With one turn that ended it is `gae`, and with
    lam = gamma = turn_gamma = 1, too.

    The first four as in `gae`; bootstrap_N is the value of a state in which a turn would begin. turns_NT: int64, the turn of each
    token, rising along each row; no unit is in two turns.

    gamma: discount per unit within a turn. turn_gamma: discount per turn. lam: 1 uses only rewards, 0 only the critic's next
    value, in a turn and from turn to turn. whiten: as in `gae`.

    Returns (advantages_NT, returns_NT) as `gae` does; the targets are advantage before whitening + value. What is paid within a
    turn, such as a KL penalty of tokens, also counts for the turns before; in the published code it counts in its own turn alone.
    """
    units = by_unit(rewards_NT, values_NT, bootstrap_N, units_NT)
    turn_NU, later_NU = units.of_tokens(turns_NT), pad(units.exists_NU[:, 1:], (0, 1))
    ends_NU = ~later_NU | (turn_NU != turn_NU.roll(-1, 1))
    delta_NU = units.rewards_NU + gamma * units.next_values_NU - units.values_NU
    advantages_NU = torch.zeros_like(delta_NU)
    ahead_N = turn_gamma * bootstrap_N.double()  # what is paid to the turn for the turns after it
    running_N = paid_N = worth_N = torch.zeros_like(ahead_N)
    for u in reversed(range(delta_NU.shape[1])):
        ends_N, reward_N, value_N = ends_NU[:, u], units.rewards_NU[:, u], units.values_NU[:, u]
        ahead_N = (turn_gamma * (paid_N + worth_N)).where(ends_N & later_NU[:, u], ahead_N)
        turn_N = reward_N + ahead_N - value_N
        running_N = turn_N.where(ends_N, delta_NU[:, u] + gamma * lam * running_N)
        advantages_NU[:, u] = running_N.where(units.exists_NU[:, u], 0.0)
        worth_N = (value_N + lam * turn_N).where(ends_N, worth_N)
        paid_N = (paid_N + reward_N).where(~ends_N, 0.0)
    return _of_units(units, advantages_NU, rewards_NT, whiten)


def _of_units(
    units: Units, advantages_NU: torch.Tensor, rewards_NT: torch.Tensor, whiten: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages of units -> (advantages_NT, returns_NT), as `gae` returns them."""
    failed_N1 = rewards_NT.isnan().any(1, keepdim=True)
    returns_NT = units.to_first_tokens(advantages_NU + units.values_NU).masked_fill(failed_N1, torch.nan)
    if whiten:
        advantages_NU = standardised(advantages_NU, units.exists_NU & ~failed_N1)
    return units.to_tokens(advantages_NU).masked_fill(failed_N1, torch.nan).float(), returns_NT.float()


def value_loss(
    values_L: torch.Tensor, old_values_L: torch.Tensor, returns_L: torch.Tensor, *, clip: float = 0.2, huber: float = math.inf
) -> tuple[torch.Tensor, torch.Tensor]:
    """The larger loss of two: of the value, and of the value clipped to within `clip` of the old one (Engstrom et al., 2020).

    The loss of an error e is e^2 / 2, and from |e| = huber on linear: huber * (|e| - huber / 2). clip, huber: above 0, inf for
    off.

    values_L: under the current weights, with gradient. old_values_L: before the step's first update. returns_L: the targets, NaN
    for tokens without one. All float [L].

    Returns (loss_L, clipped_L), 0 for tokens without a target; clipped_L is 1.0 where clipping removes the gradient.
    """
    known_L = ~returns_L.isnan()
    target_L = returns_L.where(known_L, values_L.detach())
    near_L = old_values_L + (values_L - old_values_L).clamp(-clip, clip)

    def cost(error_L: torch.Tensor) -> torch.Tensor:
        size_L = error_L.abs()
        square_L = size_L.clamp_max(huber)
        return square_L * (size_L - square_L / 2)

    plain_L, clipped_L = cost(values_L - target_L), cost(near_L - target_L)
    return torch.maximum(plain_L, clipped_L).where(known_L, 0.0), (known_L & (clipped_L > plain_L)).float()

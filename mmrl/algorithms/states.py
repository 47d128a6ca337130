"""Which turns of a group began in the same state, and what that says of them: GiGPO."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import partial
from typing import Literal

import torch

from mmrl.algorithms.advantage import group_relative
from mmrl.algorithms.units import by_unit
from mmrl.api.media.content import State


class Numbering:
    """A number for each state of a group. Of two states of a group that are the same, the number is, too."""

    def __init__(self, similarity: float = 1.0) -> None:
        """similarity: states whose pictures are equal are also the same if their texts are so similar, by the ratio of
        `difflib.SequenceMatcher` (0 to 1); of the states so far, the first that is similar enough counts."""
        self.similarity = similarity
        self._numbers: dict[tuple[int, State], int] = {}
        self._firsts: dict[tuple[int, str], list[tuple[str, int]]] = {}
        """Of states with equal pictures in a group: (the text of the first of each number, the number)."""
        self._count = 0

    def __call__(self, group: int, state: State) -> int:
        key = (group, state)
        if key not in self._numbers:
            self._numbers[key] = self._number(group, *state)
        return self._numbers[key]

    def _number(self, group: int, text: str, shown: str) -> int:
        firsts = self._firsts.setdefault((group, shown), [])
        if self.similarity < 1:
            for first, number in firsts:
                if _similar(text, first, self.similarity):
                    return number
        firsts.append((text, self._count))
        self._count += 1
        return self._count - 1


def _similar(text: str, first: str, least: float) -> bool:
    matcher = SequenceMatcher(None, text, first)
    quick = matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least  # bounds from above
    return quick and matcher.ratio() >= least


def met_again(units_NT: torch.Tensor, states_NT: torch.Tensor) -> float:
    """The share of turns whose state another turn of the group began in, too. units_NT, states_NT: see `group_in_group`."""
    first_NT = units_NT != units_NT.roll(1, 1)
    first_NT[:, 0] = True
    _, index_M, counts = states_NT[first_NT & (units_NT >= 0)].unique(return_inverse=True, return_counts=True)
    return (counts[index_M] > 1).double().mean().item() if len(index_M) else 0.0


def group_in_group(
    rewards_N: torch.Tensor,
    groups_N: torch.Tensor,
    rewards_NT: torch.Tensor,
    units_NT: torch.Tensor,
    states_NT: torch.Tensor,
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    scale: Literal["group", "none"] = "none",
    over: Literal["episodes", "turns"] = "episodes",
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """The advantage of an episode in its group, plus step_weight times that of a turn among the turns of the group that began in
    the same state: GiGPO (Feng et al., equations 3 to 8, arXiv 2505.10978).

    A turn's return is its reward and what its episode earned later, discounted by gamma for each turn. Both advantages are a
    value minus the mean of its group, by `scale` also divided by the standard deviation plus epsilon.

    rewards_N: float, NaN if the score failed. groups_N: int64. rewards_NT: float, rows of failed rollouts NaN. units_NT: int64,
    the turn of each token, -1 for tokens without one. states_NT: int64, the state in which the token's turn began, which no two
    groups share. over: what the mean and deviation of an episode's group count once: each episode, or each turn, so that long
    episodes count more, as in the published code (`compute_mean_std_cross_steps` of langfengQ/verl-agent, `gigpo/core_gigpo.py`).

    Returns float32 [N, T]: 0 for tokens without a turn, NaN in failed rows. A group with a single valid rollout has no advantage
    of episodes, and a state that was met once none of turns. (The published code gives a single rollout its plain reward.)
    """
    (n, t), device = units_NT.shape, units_NT.device
    nothing_N = torch.zeros(n, dtype=torch.float64, device=device)
    units = by_unit(rewards_NT, torch.zeros(n, t, device=device), nothing_N, units_NT)
    there_NU = units.exists_NU
    returns_NU = units.returns(gamma)
    states_NU = units.of_tokens(states_NT)
    row_M = there_NU.nonzero()[:, 0]
    relative = partial(group_relative, scale=scale, epsilon=epsilon)
    turns_M = relative(returns_NU[there_NU], states_NU[there_NU])
    if over == "turns":
        episodes_M = relative(rewards_N[row_M], groups_N[row_M])
    else:
        episodes_M = relative(rewards_N, groups_N)[row_M]
    found_NU = torch.zeros_like(returns_NU)
    found_NU[there_NU] = episodes_M.double() + step_weight * turns_M.double()
    return units.to_tokens(found_NU).masked_fill(rewards_N.isnan()[:, None], torch.nan).float()

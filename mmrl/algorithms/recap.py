"""Rules of RECAP, which conditions a policy on whether an action was better than expected (Physical Intelligence, pi*0.6: a VLA
That Learns From Experience, sections IV and V, arXiv 2511.14759).

T calls of a policy in an episode. Values and returns are minus the steps that are left, as a share of the longest episode of the
task: from -1 to 0.
"""

from __future__ import annotations

import torch


def returns_to_go(steps_T: torch.Tensor, success: bool, *, longest: int, failure: float = 1.0) -> torch.Tensor:
    """float32 [T]: the return from each call on (equation 5): each step of the simulator costs 1, the last one nothing if the
    episode succeeded and `failure` times the longest episode if not. What is below -1 counts as -1.

    steps_T: steps that each call took. longest: steps of the task's longest episode."""
    left_T = steps_T.flip(0).cumsum(0).flip(0) - 1.0
    paid_T = -left_T / longest if success else -left_T / longest - failure
    return paid_T.clamp(-1.0, 0.0).float()


def advantages(
    returns_T: torch.Tensor, steps_T: torch.Tensor, values_T: torch.Tensor, *, longest: int, lookahead: int = 0
) -> torch.Tensor:
    """float32 [T]: how much better it went than the value says. With `lookahead` calls: their cost and the value after them, less
    the value before; to the end of the episode, and with 0 always: the return less the value.

    values_T: before each call."""
    count = len(returns_T)
    ahead = lookahead or count
    later_T = (torch.arange(count) + ahead).clamp_max(count - 1)
    before_T = steps_T.cumsum(0) - steps_T
    paid_T = (before_T[later_T] - before_T).float() / -longest + values_T[later_T]
    reaches_T = torch.arange(count) + ahead >= count
    return torch.where(reaches_T, returns_T, paid_T) - values_T


def threshold(advantages_n: torch.Tensor, top: float) -> float:
    """The advantage above which an action counts as positive: a share `top` of a task's actions is above it, less where many are
    equal (section V-B, the percentile of each task)."""
    return float(torch.quantile(advantages_n.double(), 1.0 - top))


def ordered(values_n: torch.Tensor, good_n: torch.Tensor) -> float | None:
    """Chance that a value of those that are good is above one of those that aren't, ties half: the area under the ROC curve. None
    if all are alike."""
    good, bad = values_n[good_n].double(), values_n[~good_n].double().sort().values
    if not len(good) or not len(bad):
        return None
    below, not_above = (torch.searchsorted(bad, good, side=side) for side in ("left", "right"))  # of the bad, for each good
    return float((below + not_above).double().mean() / (2 * len(bad)))

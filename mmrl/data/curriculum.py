"""A curriculum: prompts are drawn from a Gaussian whose centre moves over an order of them (GAIN-RL, arXiv 2506.02281)."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import is_finite

if TYPE_CHECKING:
    import numpy as np

    from mmrl.config.sections import CurriculumConfig
    from mmrl.data.prompts import PromptIndex

KEYS = ("orders", "centres", "drawn")
"""The keys of a curriculum's state."""


def moved_centre(
    centre: float, successes: float, angle: float, *, step: float, sensitivity: float, target: float, max_step: float, last: int
) -> float:
    """The next centre of the Gaussian, in prompts.

    successes: share of completions that succeeded, 0 to 1. angle: mean angle concentration, -1 to 1. The centre moves by `step` x
    (tanh(sensitivity (successes - target)) + tanh(sensitivity angle)), at least 0 and at most `max_step`, and stops at the
    prompt `last`. In the published code (`gainrl_sampler.py`) it moves on, until all probabilities are 0 / 0.
    """
    change = step * (math.tanh(sensitivity * (successes - target)) + math.tanh(sensitivity * angle))
    return min(centre + min(max(change, 0.0), max_step), float(last))


def gaussian_shares(count: int, centre: float, width: float) -> np.ndarray:
    """float64 [count]: exp(-((place - centre) / width)² / 2)."""
    import numpy as np

    shares: np.ndarray = np.exp(-0.5 * ((np.arange(count) - centre) / width) ** 2)
    return shares


class Curriculum:
    """Draws the places of each task's prompts. Prompts with a high angle concentration come first, and no prompt is drawn twice
    between two calls of `record`, unless a task has no other left."""

    def __init__(self, config: CurriculumConfig, counts: Mapping[str, int]) -> None:
        """counts: label of a task -> number of its prompts."""
        self.config, self.counts = config, dict(counts)
        self.orders: dict[str, list[int]] = {}
        """Label -> indices of its prompts in the order of their angle concentration; empty until `set_order`."""
        self.centres = dict.fromkeys(counts, 0.0)
        """Label -> centre of the Gaussian, a place in the order."""
        self.angles: dict[PromptIndex, float] = {}
        """Angle concentrations of the prompts that the next `record` is about, but for those that can't be shown any more."""
        self._drawn: dict[str, list[int]] = {label: [] for label in counts}
        self._shares: dict[str, np.ndarray] = {}

    def set_order(self, concentrations: Mapping[str, Sequence[float]]) -> None:
        """Order the prompts of each task by their angle concentration, the highest first and equal ones as the task has them."""
        self.orders = {label: sorted(range(len(found)), key=lambda i: -found[i]) for label, found in concentrations.items()}

    def draw(self, label: str, chance: random.Random) -> int:
        """The index of the task's next prompt."""
        if len(self._drawn[label]) == self.counts[label]:
            self._drawn[label] = []
            self._shares.pop(label, None)
        if label not in self._shares:
            self._shares[label] = gaussian_shares(self.counts[label], self.centres[label], self.config.width)
            self._shares[label][self._drawn[label]] = 0.0
        sums = self._shares[label].cumsum()
        if sums[-1] > 0:
            place = int(sums.searchsorted(chance.random() * sums[-1], side="right"))
        else:  # all that are near enough to have a probability are drawn: the nearest that is left
            left = sorted(set(range(self.counts[label])) - set(self._drawn[label]))
            place = min(left, key=lambda i: abs(i - self.centres[label]))
        self._drawn[label].append(place)
        self._shares[label][place] = 0.0
        return self.orders[label][place]

    def record(self, found: Sequence[tuple[PromptIndex, float]]) -> None:
        """Move the centres by a step's groups. found: (prompt, share of its completions that succeeded). Groups whose prompt
        isn't in `angles` don't count."""
        for label in self.counts:
            own = [(share, self.angles[place]) for place, share in found if place[0] == label and place in self.angles]
            if own:
                rule = self.config
                successes, angle = (statistics.fmean(values) for values in zip(*own, strict=True))
                self.centres[label] = moved_centre(
                    self.centres[label],
                    successes,
                    angle,
                    step=rule.step,
                    sensitivity=rule.sensitivity,
                    target=rule.target,
                    max_step=rule.max_step,
                    last=self.counts[label] - 1,
                )
        self._drawn, self._shares, self.angles = {label: [] for label in self.counts}, {}, {}

    def state(self) -> dict[str, Any]:
        """The state for `restore`, as JSON data."""
        return {"orders": self.orders, "centres": dict(self.centres), "drawn": {k: list(v) for k, v in self._drawn.items()}}

    def restore(self, state: Any) -> None:
        """Restore a `state`. Raises ValueError, and changes nothing, if it can't be a state of this curriculum."""
        if not isinstance(state, Mapping) or set(state) != set(KEYS):
            raise ValueError(f"a curriculum's state has {', '.join(KEYS)}; found {state!r:.200}")
        orders, centres, drawn = (state[key] for key in KEYS)
        for name, found in zip(KEYS, (orders, centres, drawn), strict=True):
            if not isinstance(found, Mapping) or (found.keys() != self.counts.keys() and (found or name != "orders")):
                raise ValueError(f"curriculum.{name} must have the tasks {', '.join(self.counts)}; found {found!r:.200}")
        for label, order in orders.items():
            if not _are_places(order, self.counts[label]) or len(order) < self.counts[label]:
                raise ValueError(f"curriculum.orders of {label!r} must have each of its {self.counts[label]} prompts once")
        for label, centre in centres.items():
            if not is_finite(centre) or not 0 <= centre <= max(0, self.counts[label] - 1):
                raise ValueError(f"curriculum.centres of {label!r} must be a place of its prompts; found {centre!r:.60}")
        for label, places in drawn.items():
            if not _are_places(places, self.counts[label]):
                raise ValueError(f"curriculum.drawn of {label!r} must name places of its prompts once; found {places!r:.100}")
        self.orders, self.centres = {k: list(v) for k, v in orders.items()}, {k: float(v) for k, v in centres.items()}
        self._drawn, self._shares = {k: list(v) for k, v in drawn.items()}, {}


def _are_places(found: Any, count: int) -> bool:
    """Whether it is a list of different whole numbers from 0 to count - 1."""
    return isinstance(found, list) and all(type(i) is int and 0 <= i < count for i in found) and len(set(found)) == len(found)

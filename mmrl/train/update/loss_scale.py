"""The scale of a loss whose gradients are computed in float16."""

from __future__ import annotations

from collections.abc import Iterable

import torch

FIRST, MOST = 2.0**16, 2.0**24
GROWS_AFTER = 200
"""Steps without an overflow, after which the scale is doubled."""


class LossScale:
    """A factor of the loss, by which small gradients stay above float16's least number (Micikevicius et al., Mixed Precision
    Training, section 3.2, arXiv 1710.03740). It is a power of two, so that it changes nothing else. It is halved where gradients
    overflow, and that step's gradients are computed again, so that no step is lost."""

    def __init__(self) -> None:
        self.value = FIRST
        self.steps = 0
        """Without an overflow, since the scale was changed."""

    def undo(self, weights: Iterable[torch.Tensor]) -> None:
        """Take the scale from the gradients."""
        for weight in weights:  # one by one, as sharded and whole weights can't be multiplied together
            if weight.grad is not None:
                weight.grad.mul_(1 / self.value)

    def passed(self) -> None:
        """A step with gradients was taken."""
        self.steps += 1
        if self.steps == GROWS_AFTER:
            self.value, self.steps = min(2 * self.value, MOST), 0

    def halved(self) -> bool:
        """Halve the scale; False if it is 1 already, so that something else isn't finite."""
        if self.value == 1:
            return False
        self.value, self.steps = self.value / 2, 0
        return True

    def state(self) -> torch.Tensor:
        return torch.tensor([self.value, float(self.steps)])

    def load_state(self, state: torch.Tensor) -> None:
        value, steps = state.tolist()
        self.value, self.steps = value, int(steps)

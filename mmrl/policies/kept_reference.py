"""A reference model whose results are kept: the log-probabilities of completions that are seen again."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mmrl.data.prompts import PromptIndex
from mmrl.policies.policy import Policy
from mmrl.policies.reference import Reference

PREFIX = "kept/"
"""Names of kept results among the tensors of the reference's weights."""


class KeptReference(Reference):
    """A reference model, and its results for as long as it doesn't change."""

    def __init__(self, policy: Policy, adapters: bool, decay: float = 0.0) -> None:
        """adapters, decay: see `Reference`."""
        super().__init__(policy, adapters, decay)
        self.kept: dict[tuple[PromptIndex, int], float] = {}
        """(prompt, side of its pair) -> log-probability of the completion."""

    def follow(self) -> None:
        super().follow()
        self.kept.clear()

    def state(self) -> dict[str, torch.Tensor]:
        """The copy's weights, and the results: of each task the index of the prompt and the side, int64 [K, 2], and the
        log-probabilities, float64 [K]."""
        found = super().state()
        for task in sorted({task for (task, _), _ in self.kept}):
            own = [(index, side, value) for ((name, index), side), value in self.kept.items() if name == task]
            found[f"{PREFIX}places/{task}"] = torch.tensor([one[:2] for one in own], dtype=torch.int64)
            found[f"{PREFIX}sums/{task}"] = torch.tensor([one[2] for one in own], dtype=torch.float64)
        return found

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load_state(tensors)
        for name in [n for n in tensors if n.startswith(f"{PREFIX}places/")]:
            task = name.removeprefix(f"{PREFIX}places/")
            both = zip(tensors[name].tolist(), tensors[f"{PREFIX}sums/{task}"].tolist(), strict=True)
            self.kept |= {((task, index), side): value for (index, side), value in both}

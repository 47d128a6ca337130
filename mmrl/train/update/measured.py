"""What a loss asks for besides its inputs: `mmrl.algorithms.loss.MEASURED`, measured before each optimiser step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmrl.algorithms.loss import ACTING
from mmrl.api.errors import PluginError
from mmrl.compute.ranks import all_reduce_sum
from mmrl.policies.batches import Batch
from mmrl.policies.policy import Policy


class Measured:
    """Measures what a loss needs. Falsy if it needs nothing."""

    def __init__(self, policy: Policy, temperature: float, needs: Sequence[str]) -> None:
        """needs: names of `MEASURED`, in the order of the loss's parameters."""
        self.policy, self.temperature, self.needs = policy, temperature, needs

    def __bool__(self) -> bool:
        return bool(self.needs)

    @torch.no_grad()
    def before(self, batch: Batch) -> list[torch.Tensor]:
        """Before the step's first update, for each micro-batch: the means of log-probabilities over the vocabulary, if the loss
        needs them."""
        if "mean_log_ratio_L" not in self.needs:
            return []
        return [self.policy.mean_logprobs(micro, self.temperature) for micro in batch.micro]

    @torch.no_grad()
    def now(
        self, batch: Batch, old: Sequence[torch.Tensor], means: Sequence[torch.Tensor], changed: bool
    ) -> list[list[torch.Tensor]]:
        """For each micro-batch, what the loss needs. old: the log-probabilities before the step's first update; means: what
        `before` gave; both are read only if the weights have changed since."""
        found: dict[str, torch.Tensor | None] = {"groups_N": batch.groups_N, "credits_N": batch.credits_N}
        if "log_ratios_N" in self.needs:
            found["log_ratios_N"] = self._log_ratios(batch, old if changed else None)
        each = []
        for i, micro in enumerate(batch.micro):
            if "mean_log_ratio_L" in self.needs:
                moved = self.policy.mean_logprobs(micro, self.temperature) - means[i] if changed else None
                found["mean_log_ratio_L"] = torch.zeros_like(micro.advantages_L) if moved is None else moved
            if ACTING in self.needs:
                found[ACTING] = micro.through_call_L
            each.append([x for name in self.needs if (x := found[name]) is not None])
        if any(len(measured) < len(self.needs) for measured in each):
            raise PluginError(f"the loss needs {', '.join(self.needs)}, and the policy's packer gives batches without groups")
        return each

    def _log_ratios(self, batch: Batch, old: Sequence[torch.Tensor] | None) -> torch.Tensor:
        """The sum of each rollout's log-ratios, over all micro-batches and ranks; zeros without `old`."""
        sums_N = torch.zeros(len(batch.lengths_N), device=self.policy.device)
        for micro, old_L in zip(batch.micro, old, strict=True) if old is not None else ():
            sums_N.index_add_(0, micro.rollout_L, self.policy.outputs(micro, self.temperature).logprobs_L - old_L)
        return all_reduce_sum(sums_N)

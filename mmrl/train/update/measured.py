"""What a loss asks for besides its inputs: `mmrl.algorithms.loss.MEASURED`, measured before each optimiser step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmrl.api.errors import PluginError
from mmrl.compute.ranks import all_reduce_sum
from mmrl.config.sections import RlStage
from mmrl.policies.batches import Batch
from mmrl.train.update.loss_weights import compared_with
from mmrl.train.update.routing import Routing


def passes_of(needs: Sequence[str], epochs: int, minibatches: int) -> float:
    """Passes without gradients over all of a step that `Measured` takes; one over a mini-batch is a part of one."""
    changed = epochs - 1 / minibatches  # the first optimiser step has the weights of before
    found = changed * ("log_ratios_N" in needs)
    if "batch_M3" in needs:
        found += changed if minibatches > 1 else epochs
    if "mean_log_ratio_L" in needs:
        found += changed + (epochs * minibatches > 1)
    return found


class Measured:
    """Measures what a loss needs. Falsy if it needs nothing."""

    def __init__(self, routing: Routing, temperature: float, needs: Sequence[str], stage: RlStage | None = None) -> None:
        """routing: its policy is measured with the experts of the update. needs: names of `MEASURED`, in the order of the loss's
        parameters. stage: see `compared_with`."""
        self.routing, self.temperature, self.needs, self.stage = routing, temperature, needs, stage

    def __bool__(self) -> bool:
        return bool(self.needs)

    @torch.no_grad()
    def before(self, batch: Batch) -> list[torch.Tensor]:
        """Before the step's first update, for each micro-batch: the means of log-probabilities over the vocabulary, if the loss
        needs them."""
        if "mean_log_ratio_L" not in self.needs:
            return []
        return [self.routing.mean_logprobs(micro, self.temperature) for micro in batch.micro]

    @torch.no_grad()
    def now(
        self, batch: Batch, old: Sequence[torch.Tensor], means: Sequence[torch.Tensor], changed: bool
    ) -> list[list[torch.Tensor]]:
        """For each micro-batch, what the loss needs. old: the log-probabilities before the step's first update; means: what
        `before` gave; means are read only if the weights have changed since. `old` may be empty if they haven't."""
        found: dict[str, torch.Tensor | None] = {"groups_N": batch.groups_N, "credits_N": batch.credits_N}
        if "log_ratios_N" in self.needs:
            found["log_ratios_N"] = self._log_ratios(batch, old if changed else None)
        places = self._tokens(batch, old, changed, found) if "batch_M3" in self.needs else []
        each = []
        for i, micro in enumerate(batch.micro):
            if places:
                found["places_L"] = places[i]
            if "mean_log_ratio_L" in self.needs:
                moved = self.routing.mean_logprobs(micro, self.temperature) - means[i] if changed else None
                found["mean_log_ratio_L"] = torch.zeros_like(micro.advantages_L) if moved is None else moved
            if "through_call_L" in self.needs:
                found["through_call_L"] = micro.through_call_L
            each.append([x for name in self.needs if (x := found[name]) is not None])
        if any(len(measured) < len(self.needs) for measured in each):
            raise PluginError(f"the loss needs {', '.join(self.needs)}, and the policy's packer gives batches without groups")
        return each

    def _log_ratios(self, batch: Batch, old: Sequence[torch.Tensor] | None) -> torch.Tensor:
        """The sum of each rollout's log-ratios, over all micro-batches and ranks; zeros without `old`."""
        sums_N = torch.zeros(len(batch.lengths_N), device=self.routing.policy.device)
        for micro, old_L in zip(batch.micro, old, strict=True) if old is not None else ():
            sums_N.index_add_(0, micro.rollout_L, self.routing.outputs(micro, self.temperature).logprobs_L - old_L)
        return all_reduce_sum(sums_N)

    def _tokens(
        self, batch: Batch, old: Sequence[torch.Tensor], changed: bool, found: dict[str, torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Adds `batch_M3`. Returns `places_L` of each micro-batch."""
        now = [
            old[i] if old and not changed else self.routing.outputs(micro, self.temperature).logprobs_L
            for i, micro in enumerate(batch.micro)
        ]
        shape = (len(batch.lengths_N), int(batch.lengths_N.max()) if len(batch.lengths_N) else 0)
        table_NT4 = torch.zeros((*shape, 4), device=self.routing.policy.device)
        for micro, now_L, old_L in zip(batch.micro, now, old or now, strict=True):
            there_L = torch.ones_like(now_L)
            columns = [now_L, compared_with(self.stage, micro, old_L), micro.advantages_L, there_L]
            table_NT4[micro.rollout_L, micro.place_L] = torch.stack(columns, 1)
        table_NT4 = all_reduce_sum(table_NT4)  # 0 where another rank has the rollout
        there_NT = table_NT4[..., 3] > 0
        found["batch_M3"] = table_NT4[there_NT][:, :3]
        places_NT = (there_NT.flatten().cumsum(0) - 1).view(shape)
        return [places_NT[micro.rollout_L, micro.place_L] for micro in batch.micro]

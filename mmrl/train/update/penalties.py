"""What is added to the loss of each token besides the algorithm's: the KL penalty, what is asked of the entropy, and what less of
an image changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat

import torch

from mmrl.algorithms.kl import ESTIMATES, k3
from mmrl.algorithms.loss import finite_ratio
from mmrl.algorithms.perception import visual_divergence
from mmrl.config.sections import RlStage
from mmrl.policies.batches import ActionMicroBatch, Batch, ForwardOutputs, MicroBatch
from mmrl.policies.reference import Reference
from mmrl.train.update.routing import Routing


class Penalties:
    """Those of a stage. They may have a gradient where the advantage is zero, if `reach_all`."""

    def __init__(self, routing: Routing, stage: RlStage | None, reference: Reference | None, temperature: float) -> None:
        """routing: of the policy. stage: None for a stage without them. reference: the reference model of the KL penalty."""
        self.routing, self.stage, self.reference, self.temperature = routing, stage, reference, temperature
        self.entropy_coef = stage.entropy_coef if stage else 0.0
        """The current weight of the entropy bonus."""

    @property
    def reach_all(self) -> bool:
        stage = self.stage
        if stage is None:
            return False
        in_loss = self.reference is not None and stage.kl_in == "loss"
        perceives = stage.perception is not None and bool(stage.perception.coef)
        return in_loss or perceives or bool(stage.entropy_coef or stage.adaptive_entropy or stage.entropy_penalty)

    def __call__(
        self,
        loss_L: torch.Tensor,
        micro: MicroBatch | ActionMicroBatch,
        out: ForwardOutputs,
        old_L: torch.Tensor,
        before_L: torch.Tensor,
        kl: float,
        reference_L: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """(loss with all of them, float [L]; sums for metrics). out: of the pass. old_L: what the probability ratio divides by.
        before_L: the log-probabilities before the update. kl: the current coefficient of the KL penalty. reference_L: of
        `reference_logprobs`."""
        stage, logprobs_L = self.stage, out.logprobs_L
        if reference_L is not None and stage is not None:
            kl_L = k3(logprobs_L.detach(), reference_L)
            if stage.kl_in == "loss":
                penalty_L = ESTIMATES[stage.kl_estimator](logprobs_L, reference_L)
                if stage.kl_bias_correction:
                    penalty_L = penalty_L * finite_ratio(logprobs_L - old_L)
                loss_L = loss_L + kl * penalty_L
        else:
            kl_L = k3(logprobs_L.detach(), before_L)
        sums = {"kl": kl_L.sum()}
        if self.entropy_coef:
            loss_L = loss_L - self.entropy_coef * out.entropy_L
        if stage and stage.entropy_penalty:
            loss_L = loss_L - stage.entropy_penalty * logprobs_L
        if stage and stage.perception and isinstance(micro, MicroBatch):
            masked_L = self._masked(micro)
            if masked_L is not None:
                divergence_L = visual_divergence(logprobs_L, masked_L)
                loss_L = loss_L - stage.perception.coef * divergence_L - stage.perception.entropy_penalty * masked_L
                sums["perception"] = divergence_L.detach().sum()
        return loss_L, sums

    def _masked(self, micro: MicroBatch) -> torch.Tensor | None:
        """float [L]: the log-probabilities of the policy that sees less, with a gradient if it learns too; None where it isn't
        known."""
        if micro.masked is not None:
            return self.routing.beside(micro.masked, self.temperature).logprobs_L
        return micro.masked_logprobs_L


def reference_logprobs(reference: Reference | None, batch: Batch, temperature: float) -> Iterator[torch.Tensor | None]:
    """What the reference model says of each micro-batch, float32 [L]; None without one. See `Reference.each`."""
    return repeat(None) if reference is None else reference.each(batch.micro, temperature)

"""Forward, backward, clip, step."""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch

from mmrl.algorithms.loss import LossFunction, LossInputs, average, k3
from mmrl.config import RlStage, SftStage
from mmrl.errors import UserError
from mmrl.policies.vlm import VLM
from mmrl.types import Batch


class Learner:
    """One stage's optimiser and loss."""

    def __init__(
        self,
        policy: VLM,
        stage: SftStage | RlStage,
        loss: LossFunction,
        normalise: Literal["token", "sequence"],
        temperature: float = 1.0,
        reference: VLM | None = None,
        gap_limit: float = math.inf,
    ) -> None:
        """reference: what the KL penalty compares with. gap_limit: nats a token between sampler and
        learner above which an update is refused."""
        self.policy = policy
        self.stage = stage
        self.loss = loss
        self.normalise = normalise
        self.temperature = temperature
        self.named = [(name, p) for name, p in policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [p for _, p in self.named], lr=stage.learning_rate, weight_decay=stage.weight_decay, fused=True
        )
        self.epochs = stage.epochs if isinstance(stage, RlStage) else 1
        self.clip = (stage.clip_low, stage.clip_high) if isinstance(stage, RlStage) else (0.0, 0.0)
        self.kl = stage.kl if isinstance(stage, RlStage) else 0.0
        self.reference = reference
        self.gap_limit = gap_limit

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """`epochs` optimiser steps on the batch. step: number within the stage, from 0. Returns this update's metrics."""
        old: list[torch.Tensor] = []
        metrics: dict[str, float] = {}
        for epoch in range(self.epochs):
            metrics = self._epoch(batch, old, first=epoch == 0) | {k: v for k, v in metrics.items() if k == "logprob_gap"}
            if isinstance(self.stage, RlStage) and metrics["logprob_gap"] > self.gap_limit:
                self.optimizer.zero_grad()
                raise UserError(
                    f"sampler and learner disagree by {metrics['logprob_gap']:.3f} nats a token "
                    f"(limits.logprob_gap = {self.gap_limit}): what would be trained is not "
                    "what was sampled; check policy.dtype, policy.attention and the model family"
                )
            rate = learning_rate(self.stage, step)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            norm = torch.nn.utils.clip_grad_norm_([p for _, p in self.named], self.stage.max_grad_norm)
            if not torch.isfinite(norm):
                raise FloatingPointError(f"the gradient's norm is {norm.item()} at step {step}: weights were left as they were")
            self.optimizer.step()
            self.optimizer.zero_grad()
            metrics |= {"grad_norm": norm.item(), "learning_rate": rate}
        return metrics

    def _epoch(self, batch: Batch, old: list[torch.Tensor], first: bool) -> dict[str, float]:
        sums = torch.zeros(6, device=self.policy.device)
        for i, micro in enumerate(batch.micro):
            logprobs_L, entropy_L = self.policy.logprobs(micro, self.temperature)
            if first:
                old.append(logprobs_L.detach())
            inputs = LossInputs(
                logprobs_L=logprobs_L,
                old_logprobs_L=old[i],
                advantages_L=micro.advantages_L,
                rollout_L=micro.rollout_L,
                lengths_N=batch.lengths_N,
            )
            loss_L, clipped_L = self.loss(inputs, *self.clip)
            drift_L = k3(logprobs_L.detach(), old[i] if self.reference is None else torch.zeros_like(old[i]))
            if self.reference is not None:
                with torch.no_grad():
                    reference_L, _ = self.reference.logprobs(micro, self.temperature)
                penalty_L = k3(logprobs_L, reference_L)
                drift_L, loss_L = penalty_L.detach(), loss_L + self.kl * penalty_L
            loss = average(loss_L, micro, batch, self.normalise)
            loss.backward()
            gap_L = (micro.sampler_logprobs_L - old[i]).abs()
            sums += torch.stack(
                [
                    loss.detach(),
                    entropy_L.sum(),
                    clipped_L.sum(),
                    drift_L.sum(),
                    gap_L.sum(),
                    torch.tensor(float(len(gap_L)), device=sums.device),
                ]
            )
        loss, entropy, clipped, drift, gap, tokens = sums.tolist()
        tokens = tokens or math.nan  # no group had spread: nothing was computed, so there is nothing to report
        return {"loss": loss, "entropy": entropy / tokens, "clip_share": clipped / tokens, "kl": drift / tokens} | (
            {"logprob_gap": gap / tokens} if first else {}
        )

    def state(self) -> dict[str, torch.Tensor]:
        """The optimiser's tensors by parameter name, as they go into a safetensors file."""
        return {f"{name}/{key}": value for name, p in self.named for key, value in self.optimizer.state.get(p, {}).items()}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
        by_name: dict[str, dict[str, torch.Tensor]] = {}
        for path, value in tensors.items():
            name, key = path.rsplit("/", 1)
            by_name.setdefault(name, {})[key] = value
        for name, p in self.named:
            if name in by_name:
                self.optimizer.state[p] = {k: v.clone() if k == "step" else v.to(p.device) for k, v in by_name[name].items()}


def learning_rate(stage: SftStage | RlStage, step: int) -> float:
    """The rate of a step, a pure function of its number, so that a resumed run goes on exactly."""
    if step < stage.warmup_steps:
        return stage.learning_rate * (step + 1) / stage.warmup_steps
    done = (step - stage.warmup_steps) / max(1, stage.steps - stage.warmup_steps)
    factor = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[stage.schedule]
    return stage.learning_rate * factor


def frozen_copy(policy: VLM) -> VLM:
    """The policy as it is now, for a KL reference."""
    reference = copy.copy(policy)
    reference.model = copy.deepcopy(policy.model).requires_grad_(False)
    reference.family = type(policy.family)(reference.model, policy.processor)
    return reference

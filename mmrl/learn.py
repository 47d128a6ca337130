"""Forward, backward, clip, step."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Literal

import torch

from mmrl.algorithms.loss import LossFunction, LossInputs, average, k3
from mmrl.errors import UserError
from mmrl.policies.vlm import VLM
from mmrl.schema import RlStage, SftStage
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
        # bfloat16 weights are too coarse for small steps: they follow float32 masters, which are what AdamW steps
        self.masters = [p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for _, p in self.named]
        self.copies = [(m, p) for m, (_, p) in zip(self.masters, self.named, strict=True) if m is not p]
        self.optimizer = torch.optim.AdamW(self.masters, lr=stage.learning_rate, weight_decay=stage.weight_decay, fused=True)
        self.steps = 0
        """Optimiser steps taken since this learner was made."""
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
            metrics |= self._epoch(batch, old, first=epoch == 0)
            if epoch == 0 and isinstance(self.stage, RlStage) and batch.micro:
                self._check_gap(metrics["logprob_gap"])
            metrics |= self._step(learning_rate(self.stage, step))
        return metrics

    def _check_gap(self, gap: float) -> None:
        if not gap <= self.gap_limit:
            self._clear()
            raise UserError(
                f"sampler and learner disagree by {gap:.3f} nats a token (limits.logprob_gap = {self.gap_limit}): what would be "
                "trained is not what was sampled; check policy.dtype, policy.attention and the model family"
            )

    def _step(self, rate: float) -> dict[str, float]:
        """Clip the gradient, step, clear it. Raises UserError, with the weights as they were, when it is not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.stage.max_grad_norm)
        if not torch.isfinite(norm):
            self._clear()
            raise UserError(
                f"the gradient is not finite (norm {norm.item()}): lower learning_rate or max_grad_norm; "
                "--resume goes on from before this step"
            )
        self.steps += 1  # before it, so that an interrupt inside is noticed
        self.optimizer.step()
        with torch.no_grad():
            for master, p in self.copies:
                p.copy_(master)
        self._clear()
        return {"grad_norm": norm.item(), "learning_rate": rate}

    def _clear(self) -> None:
        self.optimizer.zero_grad()
        self.policy.model.zero_grad()

    def _gather(self) -> None:
        """Gradients of bfloat16 weights add up in float32: in bfloat16 the later micro-batches would be rounded away."""
        for master, p in self.copies:
            if p.grad is not None:
                master.grad = p.grad.float() if master.grad is None else master.grad.add_(p.grad)
                p.grad = None

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
            if self.reference is None:
                kl_L = k3(logprobs_L.detach(), old[i])
            else:
                with torch.no_grad():
                    reference_L, _ = self.reference.logprobs(micro, self.temperature)
                kl_L = k3(logprobs_L, reference_L)
                loss_L = loss_L + self.kl * kl_L
            loss = average(loss_L, micro, batch, self.normalise)
            loss.backward()
            self._gather()
            gap_L = (micro.sampler_logprobs_L - old[i]).abs()
            sums += torch.stack(
                [
                    loss.detach(),
                    entropy_L.sum(),
                    clipped_L.sum(),
                    kl_L.detach().sum(),
                    gap_L.sum(),
                    torch.tensor(float(len(gap_L)), device=sums.device),
                ]
            )
        loss, entropy, clipped, kl, gap, tokens = sums.tolist()
        if not tokens:  # no group had spread: nothing was computed, so there is nothing else to report
            return {"loss": loss}
        return {"loss": loss, "entropy": entropy / tokens, "clip_share": clipped / tokens, "kl": kl / tokens} | (
            {"logprob_gap": gap / tokens} if first else {}
        )

    def state(self) -> dict[str, torch.Tensor]:
        """The optimiser's tensors and the float32 masters by parameter name, as they go into a safetensors file."""
        found: dict[str, torch.Tensor] = {}
        for master, (name, p) in zip(self.masters, self.named, strict=True):
            found |= {f"{name}/{key}": value for key, value in self.optimizer.state.get(master, {}).items()}
            if master is not p:
                found[f"{name}/master"] = master.detach()
        return found

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
        by_name: dict[str, dict[str, torch.Tensor]] = {}
        for path, value in tensors.items():
            name, key = path.rsplit("/", 1)
            by_name.setdefault(name, {})[key] = value
        for master, (name, p) in zip(self.masters, self.named, strict=True):
            state = by_name.get(name, {})
            if "master" in state:
                with torch.no_grad():
                    master.copy_(state.pop("master"))
            if state:
                self.optimizer.state[master] = {k: v.to(p.device, copy=True) for k, v in state.items()}


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

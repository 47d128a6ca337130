"""What a smoke run proves: that each stage had a step in which there was something to learn from, the loss was finite, and
weights moved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mmrl.config.sections import RlStage, Training
from mmrl.policies.policy import Policy
from mmrl.policies.shard import full_tensor


@dataclass
class SmokeProof:
    """Watches the steps of a smoke run."""

    seen: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Number of a stage, from 1 -> its `kind`, the `step` that proved its update or None, what was seen there, and `why` there is
    none."""
    _before: dict[str, torch.Tensor] = field(default_factory=dict)

    def begin(self, policy: Policy) -> None:
        """Keep the weights before a step."""
        self._before = {name: full_tensor(tensor.detach()).clone() for name, tensor in policy.parameters()}

    def end(
        self, number: int, stage: Training, step: int, policy: Policy, metrics: Mapping[str, float], compares: bool = True
    ) -> None:
        """Judge a step. number: of the stage, from 1. step: of the run, from 1. compares: see `Algorithm.compares`."""
        weights = [(n, full_tensor(t.detach())) for n, t in policy.parameters() if t.numel()]
        moved = max((float((t - self._before[n]).abs().max()) for n, t in weights), default=0.0)
        share = sum(int((t != self._before[n]).sum()) for n, t in weights) / max(1, sum(t.numel() for _, t in weights))
        self._before = {}
        found = self.seen.setdefault(number, {"stage": number, "kind": stage.kind, "step": None, "why": ""})
        if found["step"] is not None:
            return
        found["why"] = _missing(stage, metrics, moved, compares)
        if not found["why"]:
            found |= {"step": step, "moved": moved, "moved_share": share, "loss": metrics["loss"]}
            found |= {name: int(metrics.get(f"sampling/smoke_{name}", 0)) for name in ("groups", "gold", "drawn")}


def _missing(stage: Training, metrics: Mapping[str, float], moved: float, compares: bool) -> str:
    """What a step lacks; empty if it proves the update."""
    compared = isinstance(stage, RlStage) and stage.group_size > 1 and not (stage.critic or stage.turn_critic or stage.condition)
    # what compares no group, such as filtered cloning, learns from gold completions that were put in, whatever the others earn
    imitates = not compares and metrics.get("sampling/smoke_gold", 0.0) > 0
    if compared and metrics.get("zero_std_share", 0.0) >= 1 and not imitates:
        return "all completions of a group scored the same, in every group"
    if not math.isfinite(metrics.get("loss", math.nan)):
        return f"the loss was {metrics.get('loss', 'missing')}"
    if not metrics.get("grad_norm", 0.0) > 0:  # weight decay moves weights too
        return "the gradient was 0"
    return "" if moved > 0 and math.isfinite(moved) else f"no weight moved (the largest change was {moved:g})"

"""The figures of a step, from what was sampled and how it was scored."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from mmrl.types import Rollout, Score


def rl_metrics(rollouts: Sequence[Rollout], scores: Sequence[Score], advantages_N: torch.Tensor) -> dict[str, float]:
    """Reward by part and by task, lengths, and how many groups taught anything. What nothing was measured of is left out."""
    values = [s.value for s in scores if s.value is not None]
    lengths = [len(r.turns[-1].token_ids) for r in rollouts]
    metrics = {"reward/mean": _mean(values), "reward/std": statistics.pstdev(values)} if values else {}
    metrics |= {
        "length/mean": _mean(lengths),
        "length/max": float(max(lengths)),
        "length/truncated_share": _mean([r.status.is_truncated for r in rollouts]),
        "judge/failed_share": _mean([s.failed for s in scores]),
        "zero_spread_share": zero_spread_share(rollouts, advantages_N),
    }
    for part in sorted({p for s in scores for p in s.parts}):
        metrics[f"reward/{part}"] = _mean([s.parts[part] for s in scores if part in s.parts])
    for task in sorted({r.prompt.task for r in rollouts}):
        if own := [s.value for s, r in zip(scores, rollouts, strict=True) if s.value is not None and r.prompt.task == task]:
            metrics[f"task/{task}/reward"] = _mean(own)
    return metrics


def zero_spread_share(rollouts: Sequence[Rollout], advantages_N: torch.Tensor) -> float:
    """Share of groups whose advantages are all zero or missing: their completions were paid for and taught nothing."""
    taught: dict[int, bool] = {}
    for rollout, advantage in zip(rollouts, advantages_N.nan_to_num(0.0).tolist(), strict=True):
        taught[rollout.group] = taught.get(rollout.group, False) or advantage != 0
    return _mean([not t for t in taught.values()])


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)

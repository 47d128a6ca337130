"""The figures of a step: of what was sampled and how it was scored, how long its parts took and how much memory it had."""

from __future__ import annotations

import contextlib
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from mmrl.api.types import Rollout, Score
from mmrl.compute import ranks
from mmrl.rollout.collector import Collector
from mmrl.run_folder.metrics import REDUCTIONS

FEW_GROUPS = 4
"""Fewer groups than this are too few to say that the policy answers all of them alike."""


class StepTimer:
    """Seconds by part: what is done inside `clock(PART)` counts as its."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.add({part: time.perf_counter() - started})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count what another clock measured."""
        for part, more in seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + more


def memory(device: torch.device) -> dict[str, float]:
    """MB that this process has: `memory/process` is resident now, `memory/gpu` the most so far that torch held on its GPU."""
    try:
        found = {"memory/process": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20}
    except FileNotFoundError:  # only Linux says what is resident now
        found = {"memory/process": _most_resident()}
    return found if device.type != "cuda" else {**found, "memory/gpu": torch.cuda.max_memory_allocated(device) / 2**20}


def peak_memory(device: torch.device) -> dict[str, int]:
    """The most so far, as the summary has it."""
    found = {"peak_memory_mb": round(_most_resident())}
    return found if device.type != "cuda" else {**found, "peak_gpu_memory_mb": round(memory(device)["memory/gpu"])}


def _most_resident() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, kilobytes elsewhere


def rl_metrics(rollouts: Sequence[Rollout], scores: Sequence[Score], advantages: torch.Tensor) -> dict[str, float]:
    """Rewards and lengths, whole and by task, and how many groups taught anything. What nothing was measured of is left out.

    advantages: [N] or [N, T]; a row of NaN is a rollout whose score failed.
    """
    values = _paid(rollouts, scores)
    metrics = {"reward/mean": _mean(values), "reward/std": statistics.pstdev(values)} if values else {}
    metrics |= {
        "length/mean": _mean([r.length for r in rollouts]),
        "length/max": float(max(r.length for r in rollouts)),
        "length/truncated_share": _mean([r.status.is_truncated for r in rollouts]),
        "judge/failed_share": _mean([s.failed for s in scores]),
        "zero_std_share": zero_std_share(rollouts, advantages),
    }
    for name in sorted({name for r in rollouts for name in r.outcome}):
        metrics[f"episode/{name}"] = _mean([r.outcome[name] for r in rollouts if name in r.outcome])
    if any(len(r.turn_versions) > 1 for r in rollouts):
        metrics["turns/mean"] = _mean([sum(size > 0 for _, size in r.turn_versions) for r in rollouts])
    if any(r.environment_reward for r in rollouts):
        metrics["reward/environment"] = _mean([r.environment_reward for r in rollouts])
    if (share := most_common_share(rollouts)) is not None:
        metrics["answers/most_common_share"] = share
    metrics |= {f"reward/{part}": mean for part, mean in _parts(scores).items()}
    for task in sorted({r.prompt.task for r in rollouts}):
        own = [i for i, r in enumerate(rollouts) if r.prompt.task == task]
        name, its_rollouts, its_scores = f"task/{task}", [rollouts[i] for i in own], [scores[i] for i in own]
        if values := _paid(its_rollouts, its_scores):
            metrics[f"{name}/reward"] = _mean(values)
        metrics[f"{name}/length"] = _mean([r.length for r in its_rollouts])
        metrics[f"{name}/zero_std_share"] = zero_std_share(its_rollouts, advantages[own])
        metrics |= {f"{name}/reward/{part}": mean for part, mean in _parts(its_scores).items()}
    return metrics


def collected_figures(collector: Collector) -> dict[str, float]:
    """What a collector measured of its own, over all learners."""
    return ranks.reduce_metrics(collector.metrics(), {**REDUCTIONS, **collector.reductions})


def zero_std_share(rollouts: Sequence[Rollout], advantages: torch.Tensor) -> float:
    """Share of groups whose advantages are all zero or missing: their completions were paid for and taught nothing.

    advantages: [N] or [N, T].
    """
    nonzero = advantages.nan_to_num(0.0) != 0
    taught: dict[int, bool] = {}
    for rollout, any_of_it in zip(rollouts, (nonzero if nonzero.ndim == 1 else nonzero.any(1)).tolist(), strict=True):
        taught[rollout.group] = taught.get(rollout.group, False) or any_of_it
    return _mean([not t for t in taught.values()])


def most_common_share(rollouts: Sequence[Rollout]) -> float | None:
    """How far the policy answers different prompts alike: each group votes for its most frequent completion, and the share of
    the groups whose vote is the most frequent one is returned; 0 with fewer than 4 groups.

    None where fewer than two different answers would be right.
    """
    if len({repr(r.prompt.answer) for r in rollouts}) < 2:
        return None
    texts: dict[int, Counter[str]] = {}
    for r in rollouts:
        texts.setdefault(r.group, Counter())[r.completion] += 1
    if len(texts) < FEW_GROUPS:
        return 0.0
    votes = Counter(counted.most_common(1)[0][0] for counted in texts.values())
    return votes.most_common(1)[0][1] / len(texts)


def _paid(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[float]:
    """The rewards of the rollouts whose score didn't fail, those of their worlds included."""
    both = zip(rollouts, scores, strict=True)
    return [s.value + r.environment_reward for r, s in both if s.value is not None]


def _parts(scores: Sequence[Score]) -> Mapping[str, float]:
    """Part -> mean of what it gave, over the scores that have it."""
    return {
        part: _mean([s.parts[part] for s in scores if part in s.parts]) for part in sorted({p for s in scores for p in s.parts})
    }


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)

"""The metrics of a step: rewards and lengths of its rollouts, seconds of its parts, and memory."""

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

from mmrl.api.episodes import Trajectory
from mmrl.api.types import Rollout, Score
from mmrl.compute import ranks
from mmrl.rollout.collector import Collector
from mmrl.run_folder.metrics import REDUCTIONS

FEW_GROUPS = 4
"""`answers/most_common_share` needs at least so many groups."""


class StepTimer:
    """Seconds by part: `with clock(PART):` adds the time of its body to the part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.add({part: time.perf_counter() - started})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of another timer."""
        for part, more in seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + more


def memory(device: torch.device) -> dict[str, float]:
    """MB of this process: `memory/process` is its resident memory now, `memory/gpu` torch's peak so far on its GPU."""
    try:
        found = {"memory/process": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20}
    except FileNotFoundError:  # only Linux reports the current resident memory; this is the peak
        found = {"memory/process": _most_resident()}
    return found if device.type != "cuda" else {**found, "memory/gpu": torch.cuda.max_memory_allocated(device) / 2**20}


def peak_memory(device: torch.device) -> dict[str, int]:
    """The peak memory in MB so far, with the summary's keys."""
    found = {"peak_memory_mb": round(_most_resident())}
    return found if device.type != "cuda" else {**found, "peak_gpu_memory_mb": round(memory(device)["memory/gpu"])}


def _most_resident() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)  # macOS reports bytes, Linux kilobytes


def rl_metrics(rollouts: Sequence[Rollout], scores: Sequence[Score], advantages: torch.Tensor) -> dict[str, float]:
    """Rewards and lengths, overall and by task, and the share of groups without advantages. Metrics without values are left out.

    advantages: [N] or [N, T]; a row of NaN is a rollout whose score failed. Without rollouts, as where rules left only answers of
    which nothing was sampled, there are no metrics.
    """
    if not rollouts:
        return {}
    values = _paid(rollouts, scores)
    metrics = {"reward/mean": _mean(values), "reward/std": statistics.pstdev(values)} if values else {}
    metrics |= {
        "length/mean": _mean([r.length for r in rollouts]),
        "length/max": float(max(r.length for r in rollouts)),
        "length/truncated_share": _mean([r.status.is_truncated for r in rollouts]),
        "judge/failed_share": _mean([s.failed for s in scores]),
        "zero_std_share": zero_std_share(rollouts, advantages),
        "uncredited_share": uncredited_share(rollouts, scores, advantages),
    }
    for name in sorted({name for r in rollouts for name in r.outcome}):
        metrics[f"episode/{name}"] = _mean([r.outcome[name] for r in rollouts if name in r.outcome])
    if any(len(r.turn_versions) > 1 for r in rollouts):
        metrics["turns/mean"] = _mean([sum(size > 0 for _, size in r.turn_versions) for r in rollouts])
    if calls := [r.num_calls for r in rollouts if isinstance(r, Trajectory) and r.num_calls]:
        metrics["policy/calls"] = _mean(calls)
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
    """The collector's own metrics, reduced over all learners."""
    return ranks.reduce_metrics(collector.metrics(), {**REDUCTIONS, **collector.reductions})


def zero_std_share(rollouts: Sequence[Rollout], advantages: torch.Tensor) -> float:
    """Share of groups whose advantages are all zero or missing, so that they teach nothing.

    advantages: [N] or [N, T].
    """
    return _mean([not taught for taught in _taught(rollouts, advantages).values()])


def uncredited_share(rollouts: Sequence[Rollout], scores: Sequence[Score], advantages: torch.Tensor) -> float:
    """Share of groups that teach nothing although their rewards differ; advantages as for `zero_std_share`."""
    paid: dict[int, list[float]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        paid.setdefault(rollout.group, []).extend(_paid([rollout], [score]))
    differ = {group: bool(values) and max(values) > min(values) for group, values in paid.items()}
    return _mean([differ[group] and not taught for group, taught in _taught(rollouts, advantages).items()])


def _taught(rollouts: Sequence[Rollout], advantages: torch.Tensor) -> Mapping[int, bool]:
    """Group -> whether a rollout of it has an advantage other than 0."""
    nonzero = advantages.nan_to_num(0.0) != 0
    taught: dict[int, bool] = {}
    for rollout, teaches in zip(rollouts, (nonzero if nonzero.ndim == 1 else nonzero.any(1)).tolist(), strict=True):
        taught[rollout.group] = taught.get(rollout.group, False) or teaches
    return taught


def credit_share(advantages_NT: torch.Tensor, mask_NT: torch.Tensor) -> float:
    """Share of the trained tokens whose credit isn't 0; those of rollouts that are left out, whose credit is NaN, don't count."""
    there_NT = mask_NT & ~advantages_NT.isnan()
    return int((there_NT & (advantages_NT != 0)).sum()) / max(1, int(there_NT.sum()))


def most_common_share(rollouts: Sequence[Rollout]) -> float | None:
    """How often the policy gives the same completion to different prompts: each group votes for its most frequent completion;
    returns the share of groups that vote for the most frequent vote, 0 with fewer than 4 groups.

    None if the prompts have fewer than two different answers.
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
    """The rewards of the rollouts whose score didn't fail, with the rewards of their environments."""
    both = zip(rollouts, scores, strict=True)
    return [s.value + r.environment_reward for r, s in both if s.value is not None]


def _parts(scores: Sequence[Score]) -> Mapping[str, float]:
    """Reward part -> its mean over the scores that have it."""
    return {
        part: _mean([s.parts[part] for s in scores if part in s.parts]) for part in sorted({p for s in scores for p in s.parts})
    }


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)

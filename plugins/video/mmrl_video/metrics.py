"""Metrics of papers: of temporal grounding the mean IoU and the share above thresholds; the mean over VSI-Bench's tasks."""

from __future__ import annotations

from collections.abc import Sequence

from mmrl import Prompt

THRESHOLDS = (0.3, 0.5, 0.7)
"""IoU thresholds of results on Charades-STA and ActivityNet Captions."""

DIRECTION = "object_rel_direction"


def recall_at(ious: Sequence[float], threshold: float) -> float:
    """R1@m: the share of questions whose one answer has an IoU of at least m (Gao et al. 2017, "TALL: Temporal Activity
    Localization via Language Query", section 4.2, with one answer a question). 0 without any question."""
    return sum(value >= threshold for value in ious) / len(ious) if ious else 0.0


def grounding_figures(ious: Sequence[float], thresholds: Sequence[float] = THRESHOLDS) -> dict[str, float]:
    """`mIoU` and `R1@0.3`, `R1@0.5`, `R1@0.7`, as shares of 1: the `summarise` of tasks whose metric is `video/tiou`. An
    unreadable answer counts as an IoU of 0."""
    mean = sum(ious) / len(ious) if ious else 0.0
    return {"mIoU": mean, **{f"R1@{threshold:g}": recall_at(ious, threshold) for threshold in thresholds}}


def vsi_bench_figures(results: Sequence[tuple[Prompt, float]]) -> dict[str, float]:
    """`vsi_bench`, the mean over the tasks, `meta["type"]`, of the mean of each, and `object_rel_direction`, the mean of the
    means of its easy, medium and hard questions, which are one task (Yang et al. 2025, "Thinking in Space", table 1). Empty
    without any."""
    tasks: dict[str, dict[str, list[float]]] = {}
    for prompt, score in results:
        kind = str(prompt.meta["type"])
        tasks.setdefault(DIRECTION if kind.startswith(DIRECTION) else kind, {}).setdefault(kind, []).append(score)
    means = {task: sum(sum(v) / len(v) for v in kinds.values()) / len(kinds) for task, kinds in tasks.items()}
    direction = {DIRECTION: means[DIRECTION]} if DIRECTION in means else {}
    return {"vsi_bench": sum(means.values()) / len(means), **direction} if means else {}

"""Metrics of temporal grounding in papers: the mean IoU, and the share above thresholds."""

from __future__ import annotations

from collections.abc import Sequence

THRESHOLDS = (0.3, 0.5, 0.7)
"""IoU thresholds of results on Charades-STA and ActivityNet Captions."""


def recall_at(ious: Sequence[float], threshold: float) -> float:
    """R1@m: the share of questions whose one answer has an IoU of at least m (Gao et al. 2017, "TALL: Temporal Activity
    Localization via Language Query", section 4.2, with one answer a question). 0 without any question."""
    return sum(value >= threshold for value in ious) / len(ious) if ious else 0.0


def grounding_figures(ious: Sequence[float], thresholds: Sequence[float] = THRESHOLDS) -> dict[str, float]:
    """`mIoU` and `R1@0.3`, `R1@0.5`, `R1@0.7`, as shares of 1: the `summarise` of tasks whose metric is `video/tiou`. An
    unreadable answer counts as an IoU of 0."""
    mean = sum(ious) / len(ious) if ious else 0.0
    return {"mIoU": mean, **{f"R1@{threshold:g}": recall_at(ious, threshold) for threshold in thresholds}}

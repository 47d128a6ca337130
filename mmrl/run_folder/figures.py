"""What the figure of an evaluation is called, and how pages and charts show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmrl.api.specs import VerifierSpec

SHARES = {"accuracy": "Accuracy", "success": "Success rate"}
"""`eval.metric` of a figure that is a share of prompts -> its title. Every other figure has the id of its verifier."""
GUARD = 1000.0
"""A verifier's range from which on it is a guard against absurd values and no scale."""


def metric_name(spec: VerifierSpec) -> str:
    """The name of a figure by the verifier that measures it, whatever it happened to score: one name for all evaluations of a
    run."""
    if spec.graded or (spec.low, spec.high) != (0.0, 1.0):
        return spec.id
    return "success" if spec.outcome else "accuracy"


def title_of(metric: str) -> str:
    """The name of a figure as a heading."""
    return SHARES.get(metric, metric)


def unit_of(*metrics: str) -> str:
    """The unit of a chart or a column with these figures: "%" if all are shares, else empty."""
    return "%" if metrics and SHARES.keys() >= {*metrics} else ""


def help_text(extra: Mapping[str, Any]) -> str:
    """What is to be known of a figure of episodes in some of which another than the policy acted, such as a person; empty if none
    did. extra: of the evaluation."""
    if not (share := extra.get("episode/intervened")):
        return ""
    alone = extra.get("episode/success_alone")
    rest = f"{alone:.3f} in the others" if alone is not None else "there are no others"
    return f"another took over in {share:.0%} of the episodes, whose success is not the policy's alone: {rest}"


def interval_text(low: float | None, high: float | None) -> str:
    """The bounds of an interval, to three decimals. Unknown ones are infinite, and None in a run folder."""
    known = low is not None and high is not None and math.isfinite(high - low)
    return f"{low:.3f} to {high:.3f}" if known else "interval unknown"


def line_of(figure: Mapping[str, Any]) -> tuple[str, str, str]:
    """What the evaluations of one line of a chart have in common: task, split, and metric. Shares are one metric, as runs of
    older versions call success accuracy."""
    return str(figure["task"]), str(figure["split"]), "" if figure["metric"] in SHARES else str(figure["metric"])


def has_scale(spec: VerifierSpec) -> bool:
    """Whether a verifier's range says which of its values are good ones."""
    return spec.high - spec.low < GUARD

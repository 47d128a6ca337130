"""A chart of metrics in a report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart of a report: its metrics and how to read them."""

    title: str
    keys: tuple[str, ...]
    """Patterns of metric keys; a metric is drawn in the first chart with a matching pattern."""
    hint: str
    names: tuple[str, ...] = ()
    """What the legend calls the metrics of each of `keys`; by default what distinguishes their keys."""
    unit: str = ""
    zero: bool = False
    spiky: bool = False
    """Rare extreme values may lie outside the chart, with a note."""
    stacked: bool = False
    per_stage: bool = False
    """One chart per stage, as values of different stages can't be compared."""
    several: bool = False
    """Leave the chart out if it has only one line, or is of the only task: another chart shows that already."""

"""A run as it goes: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BARS = " ▁▂▃▄▅▆▇█"
SHOWN = {
    "sft": (("loss", "loss"), ("grad_norm", "gradient norm"), ("time/step", "s/step")),
    "rl": (
        ("reward/mean", "reward"),
        ("length/mean", "length"),
        ("length/truncated_share", "cut off"),
        ("entropy", "entropy"),
        ("zero_spread_share", "no spread"),
        ("logprob_gap", "logprob gap"),
        ("time/step", "s/step"),
    ),
    "distill": (
        ("loss", "loss"),
        ("length/mean", "length"),
        ("entropy", "entropy"),
        ("grad_norm", "gradient norm"),
        ("time/step", "s/step"),
    ),
}
"""Stage kind -> (metric, its label); the first is drawn as a line."""


class Show:
    """Watches a run for a person. Use as a context manager."""

    def __init__(self, name: str, console: Console | None = None) -> None:
        self.name = name
        self.console = console or Console()
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self.title, self.kind, self.done, self.steps = "", "sft", 0, 1
        self.history: deque[float] = deque(maxlen=60)
        self.values: Mapping[str, float] = {}
        self.notes: list[str] = []
        self.started, self.drawn, self.first = time.monotonic(), 0.0, 0

    def __enter__(self) -> Show:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live:
            self.live.stop()

    def stage_started(self, number: int, count: int, stage: Any, done: int) -> None:
        self.title, self.kind, self.done, self.first, self.steps = (
            f"stage {number + 1} of {count}: {stage.kind}" + (f", {stage.algorithm}" if stage.kind == "rl" else ""),
            stage.kind,
            done,
            done,
            stage.steps,
        )
        self.history.clear()
        self.started = time.monotonic()
        self.console.print(f"[bold]{self.title}[/], {stage.steps} steps")

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        self.done, self.values = self.done + 1, metrics
        self.history.append(metrics.get(SHOWN[self.kind][0][0], math.nan))
        if self.live:
            if time.monotonic() - self.drawn > 0.1:  # drawing costs a few milliseconds
                self.live.update(self._panel(), refresh=True)
                self.drawn = time.monotonic()
        elif self.done == self.steps or self.done % max(1, self.steps // 10) == 0:
            self.console.print(
                f"  step {self.done}/{self.steps}  "
                + "  ".join(f"{label} {figure(metrics, key)}" for key, label in SHOWN[self.kind]),
                highlight=False,
                soft_wrap=True,
            )

    def evaluated(self, step: int, figures: Sequence[Any]) -> None:
        when = f"after {step} steps of the run" if step else "before any training"
        for f in figures:
            cut = f.extra.get("truncated_share", 0.0)
            self.console.print(
                f"  {when}  {escape(f.task)}  {escape(f.metric)} [bold]{f.value:.3f}[/] "
                f"({f.low:.3f} to {f.high:.3f}, n={f.n}{f', {cut:.0%} cut off' if cut else ''})",
                highlight=False,
                soft_wrap=True,
            )

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.console.print(f"  note: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _panel(self) -> Panel:
        elapsed = time.monotonic() - self.started
        left = elapsed / max(1, self.done - self.first) * (self.steps - self.done)
        head = Table.grid(expand=True, padding=(0, 1))
        head.add_column(ratio=1)
        head.add_column(justify="right")
        head.add_row(
            ProgressBar(total=self.steps, completed=self.done),
            f"{self.done}/{self.steps}  {_clock(elapsed)}, {_clock(left)} left",
        )
        figures = Table.grid(padding=(0, 3))
        figures.add_row(*(Text(label, style="dim") for _, label in SHOWN[self.kind]))
        figures.add_row(*(Text(figure(self.values, key), style="bold") for key, _ in SHOWN[self.kind]))
        return Panel(
            Group(head, "", figures, Text(f"{SHOWN[self.kind][0][1]} {sparkline(self.history)}", style="cyan")),
            title=escape(f"{self.name}: {self.title}"),
            border_style="dim",
        )


def figure(values: Mapping[str, float], key: str) -> str:
    """A metric for people; a dash where nothing was measured, such as the entropy of a step that taught nothing."""
    return f"{values[key]:.3g}" if key in values else "–"


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """The values as a row of bars, lowest to highest."""
    known = [v for v in values if v == v]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    return "".join(" " if v != v else BARS[1 + round((v - low) / span * (len(BARS) - 2))] for v in values)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"

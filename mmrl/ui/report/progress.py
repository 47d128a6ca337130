"""Progress of a run on stdout: a live panel in a terminal, plain lines elsewhere, only notes with `quiet`."""

from __future__ import annotations

import contextlib
import io
import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape

from mmrl.api.errors import UserError
from mmrl.api.signals import write_to_terminal
from mmrl.config.sections import Training
from mmrl.run_folder.figures import help_text, interval_text
from mmrl.run_folder.reader import read_jsonl
from mmrl.ui.report.eta import TimeEstimator
from mmrl.ui.report.output import RunOutput
from mmrl.ui.report.terminal_panel import STOPPING, Sample, Seen, figure, panel, shown_metrics
from mmrl.ui.report.text import count as counted
from mmrl.ui.report.text import duration, visible

IN_SIGHT = 20
"""Lines after a note with which it is still in sight at the end of a run."""
DRAWINGS = 2
"""Redraws of the panel per second, by a thread, so that clocks and a request to stop are up to date during long steps."""


class Show:
    """Shows the progress of a run in the terminal. Use it as a context manager."""

    def __init__(
        self, name: str, stages: Sequence[Training], folder: Path, console: Console | None = None, quiet: bool = False
    ) -> None:
        """stages: all stages of the run. folder: the run folder; the panel shows its rollouts if this machine sees it.
        quiet: print only notes."""
        # a log may accept colours (FORCE_COLOR) but no redrawing
        self.console = console or RunOutput(force_interactive=None if sys.stdout.isatty() else False)
        if not self.console.encoding.startswith("utf") and isinstance(self.console.file, io.TextIOWrapper):
            self.console.file.reconfigure(errors="replace")  # an unencodable character must not end a run
        self.folder, self.quiet = folder, quiet
        self.seen = Seen(name, TimeEstimator(stages, time.monotonic()))
        self.lock = threading.Lock()
        """Guards `seen` against the thread that draws the panel."""
        self.notes: list[tuple[str, int]] = []
        """Each note, and the number of lines that were printed until then."""
        self.printed = 0
        self.live: Live | None = None
        if self.console.is_interactive and not quiet:
            self.live = Live(
                console=self.console,
                get_renderable=self._drawn,
                refresh_per_second=DRAWINGS,
                transient=True,
                vertical_overflow="crop",
            )

    def __enter__(self) -> Show:
        if self.live:
            self.live.start(refresh=True)
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live:
            self.live.stop()

    @property
    def under_way(self) -> bool:
        """Whether a stage has started."""
        return bool(self.seen.title)

    def stage_started(self, number: int, count: int, stage: Any, done: int) -> None:
        with self.lock:
            self.seen.pace.enter(number, stage, done, time.monotonic())
            algorithm = f", {stage.algorithm}" if stage.kind == "rl" else ""
            self.seen.title = f"stage {number + 1} of {count}: {stage.kind}{algorithm}"
            self.seen.values = {}
            self.seen.history.clear()
        self._say(f"[bold]{self.seen.title}[/], {counted(stage.steps, 'step')}")

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        pace, now = self.seen.pace, time.monotonic()
        sample = self._sample(step) if self.live else None
        with self.lock:
            pace.step(now)
            self.seen.values, self.seen.sample = metrics, sample or self.seen.sample
            self.seen.history.append(metrics.get(shown_metrics(pace.kind)[0][0], math.nan))
        if not self.live and (pace.done == pace.steps or pace.done % max(1, pace.steps // 10) == 0):
            figures = "  ".join(f"{label} {figure(metrics, key)}" for key, label in shown_metrics(pace.kind))
            self._say(f"  step {pace.done}/{pace.steps}  {figures}  {self._left(now)}")

    def evaluated(self, step: int, figures: Sequence[Any]) -> None:
        with self.lock:
            self.seen.evaluated = step, figures
        when = f"after {counted(step, 'step')} of the run" if step else "before any training"
        for f in figures:
            cut = f.extra.get("truncated_share", 0.0)
            self._say(
                f"  {when}  {escape(f.task)}  {escape(f.metric)} [bold]{f.value:.3f}[/] "
                f"({interval_text(f.low, f.high)}, n={f.n}{f', {cut:.0%} cut off' if cut else ''})"
            )
            if helped := help_text(f.extra):
                self._say(f"    {helped}")

    def note(self, text: str) -> None:
        text = visible(text)
        self.printed += 1
        self.notes.append((text, self.printed))
        self.console.print(f"  note: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def scrolled(self) -> list[str]:
        """The notes that the lines since have moved out of sight."""
        return [text for text, at in self.notes if self.printed - at > IN_SIGHT]

    def say(self, text: str) -> None:
        self._say(f"[dim]{escape(visible(text))}[/]")

    def stopping(self) -> None:
        """Show that the run ends after this step. A signal handler calls it, perhaps in the middle of printing, so it does not
        use the console."""
        self.seen.stopping = True
        if not self.live:
            tell_stopping()

    def _say(self, markup: str) -> None:
        if not self.quiet:
            self.printed += 1
            self.console.print(markup, highlight=False, soft_wrap=True)

    def _drawn(self) -> Group:
        with self.lock:
            return panel(self.seen, self.console, time.monotonic())

    def _left(self, now: float) -> str:
        """`time left 42 s` of the run; `time left over 42 s` if the pace of a later stage is unknown."""
        seconds, whole = self.seen.pace.left_of_run(now) or (0.0, True)
        return f"time left {'' if whole else 'over '}{duration(seconds)}"

    def _sample(self, step: int) -> Sample | None:
        """The first recorded rollout of this step that the policy sampled; None if the step recorded none."""
        with contextlib.suppress(OSError, UserError):  # unreadable files must not end the run
            rows = read_jsonl(self.folder / "rollouts" / f"step-{step:06d}.jsonl")
            sampled = [row for row in rows if row.get("source") == "policy"] or rows
            return Sample.of_row(sampled[0]) if sampled else None
        return None


def tell_stopping() -> None:
    """Print the notice that the run stops after this step; safe in a signal handler."""
    write_to_terminal(STOPPING)

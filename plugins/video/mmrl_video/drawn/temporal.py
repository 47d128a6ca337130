"""`video/temporal`: when something happens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl import Prompt, UserError
from mmrl.api.tasks.option_checks import check_choice
from mmrl_video.drawn import plots
from mmrl_video.drawn.moves import KINDS
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.task import DrawnClips, Posed, some
from mmrl_video.metrics import grounding_figures

UNITS = ("seconds", "frames")
MOST = 64
"""Maximum of frames of a clip by policies' default limits; of more, some would be left out and the numbers would change."""
WHAT = {
    "seconds": "its start and its end in seconds, as START to END",
    "frames": "its first frame and the first one after it, counted from 0, as FIRST to LAST",
}


@dataclass(kw_only=True, eq=False)
class Grounding(DrawnClips):
    """A sentence, and the time in which it is true."""

    events: Sequence[str] = KINDS
    """Kinds of events: blink, colour, grow, hide, visit, move, shake, bounce, touch, caption."""
    units: str = "seconds"
    """Unit of the answer: seconds, whole ones unless `grid` is finer; or frames in the prompt."""

    about = "temporal"

    def __post_init__(self) -> None:
        some("events", self.events, KINDS)
        check_choice("units", self.units, UNITS)
        super().__post_init__()
        if self.units == "frames" and self.seconds[1] * self.fps > MOST:
            raise UserError(
                f'units = "frames" needs clips of {MOST} shown frames at most: {self.seconds[1]} s at fps = {self.fps:g} are '
                f"{self.seconds[1] * self.fps:g}; lower seconds or fps"
            )
        if self.units == "frames" and self.grid * self.fps % 1:
            raise UserError(f'units = "frames" needs events that start on frames: grid = {self.grid:g} times fps = {self.fps:g}')

    def tell(self, draw: random.Random) -> Plot:
        return plots.eventful(draw, self.stage, tuple(self.events), self.others)

    def ask(self, draw: random.Random, plot: Plot) -> Posed:
        event, unit_s = plot.events[0], 1.0 if self.units == "seconds" else 1 / self.fps
        span = [event.start_s / unit_s, event.end_s / unit_s]
        return Posed(
            text=f"When {event.asks}?",
            answer=span,
            said=f"{span[0]:.12g} to {span[1]:.12g}",
            thought=f"I look for the time in which {event.tells}.",
            what=WHAT[self.units],
            kind=event.kind,
            meta={
                "asks": "span",
                "spans": [(event.start_s, event.end_s)],
                "unit_s": unit_s,
                "duration": plot.frames / self.stage.rate / unit_s,
            },
        )

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Mean IoU, the share of clips with an IoU of at least 0.3, 0.5 and 0.7 (R1@m), and the mean for each kind of event."""
        return {**grounding_figures([score for _, score in results]), **super().summarise(results)}

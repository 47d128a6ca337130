"""`video/open`: what happens, as free text."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mmrl.api.tasks.option_checks import check_integer
from mmrl_video.drawn import plots
from mmrl_video.drawn.moves import MOVES
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.task import DrawnClips, Posed

BLINK, TURN = 3, 2
"""Least beats of a blink, which without one in view would be a vanishing, and of any other event: a bounce takes two."""


@dataclass(kw_only=True, eq=False)
class Telling(DrawnClips):
    """One event, or two one after the other, and nothing else."""

    events: int = 1
    """Maximum of events: 1 or 2."""

    about = "open"

    def __post_init__(self) -> None:
        check_integer("events", self.events, 1, 2)
        super().__post_init__()

    def tell(self, draw: random.Random) -> Plot:
        count = draw.randint(1, self.events)
        kinds = draw.sample(list(MOVES), count)
        plot = plots.cast(draw, self.stage, least=count, still=range(4))
        step, beat = self.stage.step, self.stage.per_beat
        half, most = plot.frames // count // step, plot.frames // step
        for number, kind in enumerate(kinds):
            least = -(-(BLINK if kind == "blink" else TURN) * beat // step)
            start = min(number * half + draw.randint(1, max(1, half // 3)), most - least)
            end = draw.randint(start + least, max(start + least, (number + 1) * half - 1))
            plot.happens(kind, number, start * step, end * step)
        return plot

    def ask(self, draw: random.Random, plot: Plot) -> Posed:
        told = ", then ".join(e.tells for e in plot.events)
        return Posed(
            text="What happens in this clip?",
            answer=told,
            said=told,
            thought="I watch what changes.",
            what="one short sentence",
            kind=plot.events[0].kind,
            meta={"asks": "text"},
        )

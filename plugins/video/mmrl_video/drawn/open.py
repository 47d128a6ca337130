"""`video/open`: what happens, as free text."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mmrl.api.tasks.option_checks import check_integer
from mmrl_video.drawn import plots
from mmrl_video.drawn.moves import MOVES
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.task import DrawnClips, Posed


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
        half, step = plot.frames // count // self.stage.step, self.stage.step
        for number, kind in enumerate(kinds):
            start = number * half + draw.randint(1, max(1, half // 3))
            plot.happens(kind, number, start * step, draw.randint(start + 1, max(start + 1, (number + 1) * half - 1)) * step)
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

"""`video/regression`: how long something lasts, how far something moves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl_video.drawn import plots
from mmrl_video.drawn.moves import MOVES
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.task import DrawnClips, Posed, some

ASKS = ("duration", "way")


@dataclass(kw_only=True, eq=False)
class Measure(DrawnClips):
    """Questions for a number that is scored by its relative error."""

    asks: Sequence[str] = ASKS
    """Kinds of questions: the seconds that something lasts, the distance that it moves in hundredths of the picture's width."""

    about = "regression"

    def __post_init__(self) -> None:
        some("asks", self.asks, ASKS)
        super().__post_init__()

    def tell(self, draw: random.Random) -> Plot:
        ask = draw.choice(tuple(self.asks))
        plot = plots.eventful(draw, self.stage, ("move",) if ask == "way" else tuple(MOVES), self.others)
        plot.about = ask
        return plot

    def ask(self, draw: random.Random, plot: Plot) -> Posed | None:
        event, one = plot.events[0], plot.parts[0]
        if plot.about == "way":
            if "direction" not in event.more:  # to and fro
                return None
            far = abs(one.x_F[-1] - one.x_F[0])
            answer = round(100 * far / self.stage.width, 1)
            question = f"By how many hundredths of the picture's width does the {one.name} move?"
        else:
            answer = event.end_s - event.start_s
            question = f"For how many seconds {event.asks}?"
        said = f"{answer:.12g}"
        thought = f"I see that {event.tells}, and measure it."
        return Posed(
            text=question,
            answer=answer,
            said=said,
            thought=thought,
            what="the number alone",
            kind=plot.about,
            meta={"asks": "number"},
        )

"""`video/number`: how often something happens, how many objects pass."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl import UserError
from mmrl.api.tasks.option_checks import check_integer
from mmrl_video.drawn import moves, plots
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.shapes import SHAPES
from mmrl_video.drawn.task import DrawnClips, Posed, some

ASKS = ("bounces", "blinks", "visits")
BY = 2
"""Maximum of passing objects of other shapes."""


@dataclass(kw_only=True, eq=False)
class Number(DrawnClips):
    """How many times an object bounces or blinks, how many objects of a shape cross the picture. The number is drawn before the
    clip, so that all answers are equally likely."""

    asks: Sequence[str] = ASKS
    """Kinds of questions: bounces, blinks, visits."""
    most: int = 5
    """The largest number, 2 to 5; bounces and blinks are at least one, visits can be none."""

    about = "number"

    def __post_init__(self) -> None:
        some("asks", self.asks, ASKS)
        check_integer("most", self.most, 2, 5)
        super().__post_init__()
        if self.seconds[0] < self.most + 2:
            raise UserError(
                f"seconds = {list(self.seconds)} is too short to count to {self.most}: begin at {self.most + 2}, or lower most"
            )

    def tell(self, draw: random.Random) -> Plot:
        ask = draw.choice(tuple(self.asks))
        plot = self._visits(draw) if ask == "visits" else self._repeats(draw, ask)
        plot.about = ask
        return plot

    def ask(self, draw: random.Random, plot: Plot) -> Posed:
        if plot.about == "visits":
            question = f"How many {plot.subject}{'es' if plot.subject.endswith('s') else 's'} go across the picture?"
        else:
            question = f"How many times {plot.events[0].asks}?"
        return Posed(
            text=question,
            answer=plot.count,
            said=str(plot.count),
            thought=f"I count them: {', '.join(map(str, range(1, plot.count + 1))) or 'there is none'}.",
            what="the number alone",
            kind=plot.about,
            meta={"asks": "number"},
        )

    def _repeats(self, draw: random.Random, ask: str) -> Plot:
        """An object that bounces or blinks a number of times, from a random beat on."""
        count, beat = draw.randint(1, self.most), self.stage.per_beat
        plot = plots.cast(draw, self.stage, still=(0,))
        long = (2 * count if ask == "bounces" else 2 * count - 1) * beat
        first = beat * draw.randint(1, (plot.frames - long) // beat - 1)
        plot.happens("bounce" if ask == "bounces" else "blink", 0, first, first + long)
        plot.count = count
        return plot

    def _visits(self, draw: random.Random) -> Plot:
        """Objects cross the picture one after the other, each in a lane; some have the shape in the question."""
        count = draw.randint(0, self.most)
        shape, *other = draw.sample(list(SHAPES), len(SHAPES))
        total = min(self.most + 1, max(1, count + draw.randint(0, BY)))
        shapes = [shape] * count + [draw.choice(other) for _ in range(total - count)]
        plot = plots.cast(draw, self.stage, exactly=min(3, max(1, self.objects)), shapes=shapes)
        lanes, plot.colours = [one.lane for one in plot.parts], [one.colour for one in plot.parts] + plot.colours
        plot.parts = []
        slot = plot.frames // len(shapes) // self.stage.per_beat * self.stage.per_beat
        for number, of in enumerate(draw.sample(shapes, len(shapes))):
            lane, colour = lanes[number % len(lanes)], plot.take_colour()
            plot.parts.append(moves.part(draw, of, colour, lane, plot.frames, self.stage.per_beat, False))
            start = number * slot + draw.randint(0, max(0, slot // 3))
            plot.happens("visit", number, start, max(start + 1, (number + 1) * slot - draw.randint(0, slot // 4)))
        plot.count, plot.subject = count, shape
        return plot

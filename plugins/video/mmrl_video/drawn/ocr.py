"""`video/ocr`: which text appears."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl.api.tasks.option_checks import check_integer
from mmrl_video.drawn import plots
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.task import DrawnClips, Posed, pair


@dataclass(kw_only=True, eq=False)
class Reading(DrawnClips):
    """One text or several appear one after the other; one of them is to be read."""

    captions: int = 2
    """Maximum of texts in a clip, 1 to 4; their number is random."""
    letters: Sequence[int] = (3, 5)
    """[minimum, maximum] of letters and digits of a text, up to 8."""

    about = "ocr"

    def __post_init__(self) -> None:
        check_integer("captions", self.captions, 1, 4)
        pair("letters", self.letters, 1, 8)
        super().__post_init__()

    def tell(self, draw: random.Random) -> Plot:
        plot = plots.cast(draw, self.stage, caption=True)
        count, beat = draw.randint(1, self.captions), self.stage.per_beat
        slot = plot.frames // beat // count  # beats of each, with at least one in between
        for number in range(count):
            long = draw.randint(max(1, slot // 3), max(1, slot - 1))
            start = number * slot + draw.randint(0, slot - 1 - long if slot > long + 1 else 0)
            text = plots.letters(draw, *self.letters)
            while text in [c.text for c in plot.captions]:
                text = plots.letters(draw, *self.letters)
            plot.shows(text, start * beat, (start + long) * beat)
        return plot

    def ask(self, draw: random.Random, plot: Plot) -> Posed:
        texts = [c.text for c in plot.captions]
        which = draw.choice(("first", "last")) if len(texts) > 1 else "only"
        text = texts[-1 if which == "last" else 0]
        question = "What text appears?" if which == "only" else f"What is the {which} text that appears?"
        return Posed(
            text=question,
            answer=text,
            said=text,
            thought="I read the text.",
            what="the text alone",
            kind=which,
            meta={"asks": "text"},
        )

"""`video/grounded`: what happens, with lettered options, and when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl import Prompt
from mmrl.api.tasks.option_checks import check_integer
from mmrl_video.drawn import plots
from mmrl_video.drawn.choice import what_happens
from mmrl_video.drawn.moves import MOVES
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.task import DrawnClips, Posed, some


@dataclass(kw_only=True, eq=False)
class GroundedChoice(DrawnClips):
    """An answer, and the time in which it can be seen."""

    events: Sequence[str] = tuple(MOVES)
    """Kinds of events: blink, colour, grow, hide, visit, move, shake, bounce."""
    choices: int = 4
    """Number of options of a question, 2 to 5."""

    about = "grounded"

    def __post_init__(self) -> None:
        some("events", self.events, tuple(MOVES))
        check_integer("choices", self.choices, 2, 5)
        super().__post_init__()

    def tell(self, draw: random.Random) -> Plot:
        return plots.eventful(draw, self.stage, tuple(self.events), self.others)

    def ask(self, draw: random.Random, plot: Plot) -> Posed:
        event, name = plot.events[0], plot.parts[plot.events[0].who].name
        given = what_happens(draw, plot, event, self.choices)
        return Posed(
            text=given.shown(f"What happens to the {name}, and when?").strip(),
            answer={"answer": given.letter, "glue": [[event.start_s, event.end_s]]},
            said=f"{given.letter} {event.start_s:.12g} to {event.end_s:.12g}",
            thought=f"I see that {event.tells}, from {event.start_s:.12g} to {event.end_s:.12g} seconds.",
            what="the letter and the time in seconds, as LETTER START to END",
            kind=event.kind,
            meta={"asks": "grounded-choice", "options": given.options, "spans": [(event.start_s, event.end_s)], "unit_s": 1.0},
        )

    def gold(self, prompt: Prompt) -> str:
        if self.style != "tags":
            return super().gold(prompt)
        ((start, end),) = prompt.answer["glue"]
        said = f"<answer>{prompt.answer['answer']}</answer>\n<glue>[({start:.12g}, {end:.12g})]</glue>"
        return f"<think>{prompt.meta['thought']}</think>\n{said}"

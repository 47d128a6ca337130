"""`video/choice`: questions with lettered options: what happens, which colour, what comes first, which way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmrl.api.tasks.option_checks import check_integer
from mmrl_video.drawn import plots
from mmrl_video.drawn.moves import MOVES, SAYS
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.story import Event
from mmrl_video.drawn.task import DrawnClips, Posed, some

ASKS = ("what", "colour", "first", "direction")
LETTERS = "ABCDEFGH"
LIKE = {
    "blink": ("hide", "visit"),
    "hide": ("blink", "visit"),
    "visit": ("hide", "blink", "move"),
    "move": ("visit", "shake", "bounce"),
    "shake": ("move", "bounce"),
    "bounce": ("move", "shake"),
}
"""Kind -> kinds that could also describe it, and are not used as wrong options."""
MOVING = ("move", "visit", "shake", "bounce")
"""Kinds that could describe an object that moves to and fro all the time."""


class Lettered(NamedTuple):
    """Options in the order of the prompt."""

    options: list[str]
    right: int

    @property
    def letter(self) -> str:
        return LETTERS[self.right]

    def shown(self, question: str) -> str:
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, self.options, strict=False))
        return f"{question}\n{listed}\n"


def lettered(draw: random.Random, right: str, wrong: Sequence[str]) -> Lettered:
    """The options in random order."""
    options = draw.sample([right, *wrong], len(wrong) + 1)
    return Lettered(options, options.index(right))


def what_happens(draw: random.Random, plot: Plot, event: Event, count: int) -> Lettered:
    """`count` possible events of an object, of which only the given one happens."""
    one = plot.parts[event.who]
    unlike = [k for k in MOVES if k not in (event.kind, *LIKE.get(event.kind, ()))]
    if len(set(one.x_F)) > 1 and event.kind not in MOVING:
        unlike = [k for k in unlike if k not in MOVING]
    free = draw.sample(plot.colours, len(plot.colours))
    if not free:
        unlike = [k for k in unlike if k != "colour"]
    wrong = [SAYS[k][0].format("it", free.pop() if k == "colour" else "") for k in draw.sample(unlike, len(unlike))]
    while free and len(wrong) < count - 1:
        wrong.append(SAYS["colour"][0].format("it", free.pop()))
    return lettered(draw, event.tells.replace(f"the {one.name}", "it", 1), wrong[: count - 1])


@dataclass(kw_only=True, eq=False)
class Choice(DrawnClips):
    """A question about an event, with options of which one is right."""

    asks: Sequence[str] = ASKS
    """Kinds of questions: what happens to an object, which colour it turns, what happens first, in which direction it moves."""
    choices: int = 4
    """Maximum of options of a question, 2 to 5."""

    about = "choice"

    def __post_init__(self) -> None:
        some("asks", self.asks, ASKS)
        check_integer("choices", self.choices, 2, 5)
        super().__post_init__()

    def tell(self, draw: random.Random) -> Plot:
        ask = draw.choice(tuple(self.asks))
        if ask == "first":
            plot = self._several(draw)
        else:
            kinds = {"what": tuple(MOVES), "colour": ("colour",), "direction": ("move", "visit")}[ask]
            plot = plots.eventful(draw, self.stage, kinds, self.others)
        plot.about = ask
        return plot

    def ask(self, draw: random.Random, plot: Plot) -> Posed | None:
        event, name = plot.events[0], f"the {plot.parts[plot.events[0].who].name}"
        if plot.about == "what":
            question, given = f"What happens to {name}?", what_happens(draw, plot, event, self.choices)
        elif plot.about == "colour":
            others = draw.sample(plot.colours, min(self.choices - 1, len(plot.colours)))
            question, given = f"Which colour does {name} turn?", lettered(draw, event.more["colour"], others)
        elif plot.about == "first":
            tells = [e.tells for e in sorted(plot.events, key=lambda e: e.start_s)]
            question, given = "What happens first?", lettered(draw, tells[0], tells[1:])
        else:
            if not (right := event.more.get("direction")):
                return None
            wrong = "left" if right == "right" else "right"
            question = f"Which way does {name} move?" if event.kind == "move" else f"From which side does {name} come?"
            given = lettered(draw, right, [wrong])
        return Posed(
            text=given.shown(question).strip(),
            answer=given.letter,
            said=given.letter,
            thought=f"I see that {'first ' * (plot.about == 'first')}{event.tells}.",
            what="the letter alone",
            kind=plot.about,
            meta={"asks": "choice", "options": given.options},
        )

    def _several(self, draw: random.Random) -> Plot:
        """Each object has its own event, and no two begin within a second; the first to happen is the first event."""
        kinds = draw.sample([k for k in MOVES if k != "colour"], min(max(2, self.objects), self.choices, 4))
        kinds = kinds[: draw.randint(2, len(kinds))]
        plot = plots.cast_for(draw, self.stage, kinds)
        step, rate, most = self.stage.step, self.stage.rate, plot.frames // self.stage.step
        apart = -(-rate // step)
        starts = [1 + i * apart for i in range((most - 3) // apart + 1)]
        for kind, start in zip(kinds, sorted(draw.sample(starts, min(len(kinds), len(starts)))), strict=False):
            longest = max(1, min(most // 2, most - start - 1))
            last = start + draw.randint(min(longest, -(-2 * self.stage.per_beat // step)), longest)
            plot.happens(kind, kinds.index(kind), start * step, last * step)
        return plot

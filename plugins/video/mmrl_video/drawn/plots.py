"""Random stories: the objects, their events, and the times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mmrl import UserError
from mmrl_video.drawn import moves
from mmrl_video.drawn.moves import BEAT_S, Part
from mmrl_video.drawn.shapes import BACKGROUNDS, COLOURS, SHAPES
from mmrl_video.drawn.story import Box, Caption, Event, Story

SIZES = {"small": (64, 64, 2), "middle": (224, 224, 4), "large": (448, 336, 8)}
"""Name -> (width, height, frames per second)."""
LETTERS = "ABCDEFGHJKLMNPRTUVWXY346789"
"""Letters and digits that are distinguishable when small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Common settings of all clips of a task."""

    width: int = 64
    height: int = 64
    rate: int = 2
    """Frames per second: an even number."""
    shortest_s: int = 8
    longest_s: int = 16
    grid_s: float = 1.0
    """Events start and end at multiples of this many seconds, itself a multiple of `BEAT_S`."""
    objects: int = 3
    """Maximum of objects, 1 to 4; their number is random."""
    backgrounds: Sequence[str] = BACKGROUNDS
    moving: float = 0.5
    """Probability that an object moves to and fro all the time, if its event allows it."""

    @property
    def per_beat(self) -> int:
        """Number of frames per beat."""
        return round(self.rate * BEAT_S)

    @property
    def step(self) -> int:
        """Number of frames per step of the grid."""
        return round(self.rate * self.grid_s)


@dataclass(kw_only=True)
class Plot:
    """A story under construction: methods add events, `story` returns the result."""

    draw: random.Random
    stage: Stage
    frames: int
    parts: list[Part]
    events: list[Event]
    captions: list[Caption]
    colours: list[str]
    """Unused colours."""
    band: Box | None = None
    """Region of captions; None without captions."""
    about: str = ""
    """Kind of the question, with `count` and `subject`."""
    count: int = 0
    subject: str = ""

    def stretch(self, shortest: int = 0, longest: int = 0) -> tuple[int, int]:
        """A random stretch on the grid: (first frame, first frame after it), with frames before and after it.

        All possible lengths are equally likely. shortest, longest: in frames; by default a second, and half of the clip.
        """
        step = self.stage.step
        least = -(-max(shortest or self.stage.rate, 2 * self.stage.per_beat) // step)
        most = max(least, min((longest or self.frames // 2) // step, self.frames // step - 2))
        length = self.draw.randint(least, most)
        start = self.draw.randint(1, max(1, self.frames // step - length - 1))
        return start * step, min((start + length) * step, self.frames)

    def happens(self, kind: str, who: int, first: int, last: int) -> Event:
        """Adds an event of an object, of `moves.MOVES`, from `first` to before `last`."""
        one = self.parts[who]
        if kind == "colour":
            one.more["colour"] = self.take_colour()
        moves.MOVES[kind](self.draw, one, first, last)
        return self.tell(kind, who, first, last, one.more.get("colour", ""), dict(one.more))

    def tell(self, kind: str, who: int, first: int, last: int, other: str = "", more: dict | None = None) -> Event:
        """Records an event. other: the second name in its sentence."""
        name = f"the {self.parts[who].name}" if who >= 0 else ""
        tells, asks = (form.format(name, other) for form in moves.SAYS[kind])
        rate = self.stage.rate
        event = Event(kind=kind, who=who, start_s=first / rate, end_s=last / rate, tells=tells, asks=asks, more=dict(more or {}))
        self.events.append(event)
        return event

    def touches(self, first: int, last: int) -> Event:
        """Adds a touch of the first two objects, which share a lane."""
        moves.touch(self.draw, self.parts[0], self.parts[1], first, last)
        return self.tell("touch", 0, first, last, f"the {self.parts[1].name}")

    def shows(self, text: str, first: int, last: int) -> Event:
        """Adds a line of text."""
        assert self.band is not None
        self.captions.append(Caption(text=text, first=first, last=last, band=self.band))
        return self.tell("caption", -1, first, last, text, {"text": text})

    def take_colour(self) -> str:
        """An unused colour."""
        return self.colours.pop(self.draw.randrange(len(self.colours)))

    def story(self) -> Story:
        draw, stage = self.draw, self.stage
        return Story(
            width=stage.width,
            height=stage.height,
            rate=stage.rate,
            frames=self.frames,
            background=(draw.choice(tuple(stage.backgrounds)), draw.getrandbits(24)),
            actors=tuple(one.actor() for one in self.parts),
            captions=tuple(self.captions),
            events=tuple(sorted(self.events, key=lambda e: (e.start_s, e.end_s, e.tells))),
        )


def cast(
    draw: random.Random,
    stage: Stage,
    *,
    least: int = 1,
    still: Sequence[int] = (),
    pair: bool = False,
    caption: bool = False,
    shapes: Sequence[str] = (),
    exactly: int = 0,
    first: Sequence[str] = (),
) -> Plot:
    """A clip's length and its objects, all of different colours, each in its own lane, without events.

    least: minimum of objects. still: indices of those at rest. pair: the first two share a lane, at rest, and have shapes that
    can touch. caption: leave room for text. shapes: of the first objects, in order. exactly: number of objects, instead of the
    stage's. first: possible colours of the first object.
    """
    seconds = draw.randint(stage.shortest_s, stage.longest_s)
    frames = seconds * stage.rate // stage.step * stage.step
    count = exactly or draw.randint(least, max(least, stage.objects))
    band_height = max(16, stage.height // 5) if caption else 0
    lanes = _lanes(stage, count - pair, stage.height - band_height)
    draw.shuffle(lanes)
    if pair:
        lanes.insert(0, lanes[0])
    colours = draw.sample(list(COLOURS), len(COLOURS))
    if first:
        colours.append(colours.pop(next(i for i, colour in enumerate(colours) if colour in first)))  # the last is used first
    parts = []
    for number in range(count):
        at_rest = number in still or (pair and number < 2) or draw.random() >= stage.moving
        known = moves.TOUCHING if pair and number < 2 else tuple(SHAPES)
        shape = shapes[number] if number < len(shapes) else draw.choice(known)
        parts.append(moves.part(draw, shape, colours.pop(), lanes[number], frames, stage.per_beat, not at_rest))
    band = (0, stage.height - band_height, stage.width, stage.height) if caption else None
    return Plot(draw=draw, stage=stage, frames=frames, parts=parts, events=[], captions=[], band=band, colours=colours)


def cast_for(draw: random.Random, stage: Stage, kinds: Sequence[str]) -> Plot:
    """Objects that can have these events, in order; for a touch the first two."""
    pair = "touch" in kinds
    still = [who for who, kind in enumerate(kinds) if kind in moves.STILL]
    return cast(draw, stage, least=max(len(kinds), 2 * pair), still=still, pair=pair, caption="caption" in kinds)


def _lanes(stage: Stage, count: int, height: int) -> list[Box]:
    """`count` strips of the picture, each over its width, a pixel apart."""
    edges = [round(height * i / count) for i in range(count + 1)]
    if min(b - a for a, b in pairwise(edges)) < 12:
        raise UserError(f"{count} objects don't fit into {stage.width} x {stage.height} pixels: lower objects, or raise size")
    return [(0, top + 1, stage.width, bottom - 1) for top, bottom in pairwise(edges)]


def letters(draw: random.Random, least: int, most: int) -> str:
    """A text without meaning, so that it has to be read."""
    return "".join(draw.choice(LETTERS) for _ in range(draw.randint(least, most)))


def eventful(draw: random.Random, stage: Stage, kinds: Sequence[str], others: float = 0.5) -> Plot:
    """A clip with an event of these kinds for one object, which is the plot's first event, and, with probability `others`, an
    event for each of the others."""
    kind = draw.choice(tuple(kinds))
    plot = cast_for(draw, stage, [kind])
    first, last = plot.stretch()
    if kind == "touch":
        plot.touches(first, last)
    elif kind == "caption":
        plot.shows(letters(draw, 3, 5), first, last)
    else:
        plot.happens(kind, 0, first, last)
    idle = range(2 if kind == "touch" else 0 if kind == "caption" else 1, len(plot.parts))
    known = [k for k in moves.MOVES if k in kinds] or ["hide"]
    for who in idle:
        if draw.random() < others and (free := [k for k in known if k != "colour" or plot.colours]):
            plot.happens(draw.choice(free), who, *plot.stretch())
    return plot

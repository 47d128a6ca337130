"""Events of an object in a clip: each changes its positions, sizes and colours in exactly one stretch of frames."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mmrl_video.drawn.story import Actor, Box

BEAT_S = 0.5
"""Events start and end on multiples of it, so that a clip at two frames per second shows all of them."""
GROWN = 1.5
"""Factor by which an object grows."""


@dataclass(kw_only=True)
class Part:
    """An object under construction: over F frames, in its own lane."""

    shape: str
    colour: str
    size: int
    """Side of its box in pixels."""
    lane: Box
    """Its own region, which spans the picture's width."""
    x_F: list[int]
    """Its left edges; `y_F`: its upper edges."""
    y_F: list[int]
    size_F: list[int]
    colour_F: list[str]
    per_beat: int
    """Number of frames per beat."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further attributes of its event."""

    @property
    def frames(self) -> int:
        return len(self.x_F)

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def room(self) -> int:
        """Maximal position of its left edge."""
        return self.lane[2] - self.lane[0] - self.size

    def actor(self) -> Actor:
        boxes = tuple((x, y, x + s, y + s) for x, y, s in zip(self.x_F, self.y_F, self.size_F, strict=True))
        return Actor(shape=self.shape, colour=self.colour, boxes_F=boxes, colours_F=tuple(self.colour_F))


def part(draw: random.Random, shape: str, colour: str, lane: Box, frames: int, per_beat: int, drifts: bool) -> Part:
    """An object in its lane: at rest at a random position, or moving to and fro all the time."""
    x1, y1, x2, y2 = lane
    size = max(6, min(round((y2 - y1) * draw.uniform(0.42, 0.6)), (x2 - x1) // 3))
    room, home = x2 - x1 - size, draw.randint(0, x2 - x1 - size)
    spare = round(size * (GROWN - 1) / 2)
    y = draw.randint(y1 + spare, max(y1 + spare, y2 - size - spare))
    x_F = [x1 + home] * frames
    if drifts:
        a_second = (x2 - x1) * draw.uniform(0.06, 0.2) * draw.choice((-1, 1))
        x_F = [x1 + _folded(round(home + a_second * i * BEAT_S / per_beat), room) for i in range(frames)]
    return Part(
        shape=shape,
        colour=colour,
        size=size,
        lane=lane,
        x_F=x_F,
        y_F=[y] * frames,
        size_F=[size] * frames,
        colour_F=[colour] * frames,
        per_beat=per_beat,
    )


def _folded(place: int, room: int) -> int:
    """A position on an infinite line, reflected into 0 to `room`."""
    if room <= 0:
        return 0
    place %= 2 * room
    return place if place <= room else 2 * room - place


# -- moves: (draw, part, first frame, first frame after it) ----------------------------------------------------------------


def blink(draw: random.Random, one: Part, first: int, last: int) -> None:
    """It is invisible in every other beat, including the first and the last one."""
    beats = (last - first) // one.per_beat
    for beat in range(beats):
        if beat % 2 == 0 or beat == beats - 1:
            _hide(one, first + beat * one.per_beat, first + (beat + 1) * one.per_beat)


def recolour(draw: random.Random, one: Part, first: int, last: int) -> None:
    """It has the colour `more["colour"]`."""
    one.colour_F[first:last] = [one.more["colour"]] * (last - first)


def grow(draw: random.Random, one: Part, first: int, last: int) -> None:
    """It is larger, with the same centre."""
    large = one.size + 2 * max(2, round(one.size * (GROWN - 1) / 2))
    by = (large - one.size) // 2
    for i in range(first, last):
        one.x_F[i], one.y_F[i], one.size_F[i] = one.x_F[i] - by, one.y_F[i] - by, large


def hide(draw: random.Random, one: Part, first: int, last: int) -> None:
    """It is invisible."""
    _hide(one, first, last)


def visit(draw: random.Random, one: Part, first: int, last: int) -> None:
    """It enters at one side, crosses the picture and leaves at the other; before and after it is invisible."""
    _hide(one, 0, first)
    _hide(one, last, one.frames)
    way = one.lane[2] - one.lane[0]
    start, count = -(one.size // 2), max(1, last - first - 1)
    places = [start + round(way * i / count) for i in range(last - first)]
    from_left = draw.random() < 0.5
    for i, place in enumerate(places):
        one.x_F[first + i] = one.lane[0] + (place if from_left else way - one.size - place)
    one.more["direction"] = "left" if from_left else "right"


def move(draw: random.Random, one: Part, first: int, last: int) -> None:
    """It moves sideways at constant speed; before and after it is at rest."""
    count, room = last - first, one.room
    a_frame = draw.randint(max(1, room // count // 2), max(1, room // count))
    far = a_frame * count
    rightwards = draw.random() < 0.5
    if far <= room:
        start = draw.randint(0, room - far)
        places = [start + i * a_frame for i in range(count + 1)]
    else:  # to and fro, a pixel per frame: consecutive frames always differ
        start = draw.randint(0, room)
        places = [_folded(start + i, room) for i in range(count + 1)]
    for i in range(one.frames):
        place = places[min(max(i - first + 1, 0), count)]
        one.x_F[i] = one.lane[0] + (place if rightwards else room - place)
    if far <= room:
        one.more["direction"] = "right" if rightwards else "left"


def shake(draw: random.Random, one: Part, first: int, last: int) -> None:
    """It jumps from side to side around its position at every beat."""
    by = max(2, one.size // 4)
    home = one.lane[0] + min(max(one.x_F[0] - one.lane[0], by), max(by, one.room - by))
    for i in range(one.frames):
        side = 1 if (i - first) // one.per_beat % 2 == 0 else -1
        one.x_F[i] = home + (side * by if first <= i < last else 0)


def bounce(draw: random.Random, one: Part, first: int, last: int) -> None:
    """It falls from the top of its lane to the floor in a beat, and rises in one; it is at rest before and after. Of an odd
    number of beats the last two are for the last rise."""
    top, floor, fall = one.lane[1], one.lane[3] - one.size, one.per_beat
    turns = (last - first) // (2 * fall)
    for i in range(one.frames):
        done = i - first + 1  # frames since its start
        turn = min((done - 1) // (2 * fall), turns - 1)
        done -= 2 * fall * turn
        rise = (last - first) - 2 * fall * turn - fall if turn == turns - 1 else fall
        depth = done / fall if done <= fall else 1 - (done - fall) / rise
        one.y_F[i] = top + round((floor - top) * (depth if first <= i < last else 0))
    one.more["count"] = turns


def _hide(one: Part, first: int, last: int) -> None:
    one.colour_F[first:last] = [""] * (last - first)


def touch(draw: random.Random, one: Part, other: Part, first: int, last: int) -> None:
    """In the lane of `one`, `other` is at rest at the right, and `one` moves to it, stays beside it, and moves back."""
    near = one.lane[2] - 1 - other.size - one.size
    home = one.lane[0] + draw.randint(0, max(0, near // 3))
    between = (home + near) // 2
    middle = (one.lane[1] + one.lane[3]) // 2
    for i in range(one.frames):
        apart = max(first - i, i - last + 1)  # frames until or since the touch
        one.x_F[i] = near if apart <= 0 else between if apart <= one.per_beat else home
        other.x_F[i] = near + one.size
        one.y_F[i], other.y_F[i] = middle - one.size // 2, middle - other.size // 2


MOVES: dict[str, Callable[[random.Random, Part, int, int], None]] = {
    "blink": blink,
    "colour": recolour,
    "grow": grow,
    "hide": hide,
    "visit": visit,
    "move": move,
    "shake": shake,
    "bounce": bounce,
}
STILL = ("move", "shake", "bounce", "touch", "visit")
"""Events of objects that are otherwise at rest."""
TOUCHING = ("circle", "square", "diamond", "cross")
"""Shapes that reach the sides of their boxes at half height, where they touch."""
SAYS = {
    "blink": ("{0} blinks", "does {0} blink"),
    "colour": ("{0} turns {1}", "is {0} {1}"),
    "grow": ("{0} grows", "is {0} larger"),
    "hide": ("{0} vanishes", "is {0} gone"),
    "visit": ("{0} crosses the picture", "is {0} in the picture"),
    "move": ("{0} moves", "does {0} move"),
    "shake": ("{0} shakes", "does {0} shake"),
    "bounce": ("{0} bounces", "does {0} bounce"),
    "touch": ("{0} touches {1}", "does {0} touch {1}"),
    "caption": ('the text "{1}" appears', 'is the text "{1}" shown'),
}
"""Kind -> (sentence, question after `When`)."""
KINDS = tuple(SAYS)


def cross(one: Part, rightwards: bool) -> None:
    """It moves from one side of the picture to the other, once, over the whole clip."""
    last = max(1, one.frames - 1)
    for i in range(one.frames):
        place = round(one.room * i / last)
        one.x_F[i] = one.lane[0] + (place if rightwards else one.room - place)

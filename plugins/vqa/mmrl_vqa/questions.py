"""Questions on drawn scenes. Each function makes a question, or returns None if the scene allows no clear one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mmrl_vqa.asking import letter_of
from mmrl_vqa.scenes import COLOURS, SHAPES, Thing

CLEAR = 0.08
"""Minimal distance, as a share of the picture's side, for one shape to count as left of another."""
SIDES = ("left", "right", "top", "bottom")
CORNERS = ("top left", "top right", "bottom left", "bottom right")
ORDINALS = ("first", "second", "third")


class Question(NamedTuple):
    kind: str
    """choice, number, yes-no or text."""
    text: str
    answer: str
    options: tuple[str, ...] = ()
    concerned: tuple[Thing, ...] = ()
    """The shapes on which the answer depends, for display."""
    steps: int = 1
    """Number of things to distinguish or count, from 1: part of the difficulty."""


def choose(kind: str, scene: Sequence[Thing], draw: random.Random) -> Question | None:
    """A question of a kind."""
    makers = list(SINGLE[kind])
    draw.shuffle(makers)
    return next((q for make in makers if (q := make(scene, draw)) is not None), None)


def compare(kind: str, scenes: Sequence[Sequence[Thing]], draw: random.Random) -> Question | None:
    """A question of a kind on two or three scenes: `choice`, which has more; `number`, how many more or all together."""
    what, test = _class_of([t for scene in scenes for t in scene], draw)
    counts = [sum(map(test, scene)) for scene in scenes]
    if kind == "choice":
        if counts.count(max(counts)) > 1:
            return None
        options = tuple(f"the {ORDINALS[i]}" for i in range(len(scenes)))
        text = f"Which picture has {'more' if len(scenes) == 2 else 'the most'} {what}s?"
        return Question("choice", text, letter_of(counts.index(max(counts))), options, _first(scenes, test), steps=2)
    if len(scenes) == 2 and counts[0] > counts[1]:
        text = f"How many more {what}s are in the first picture than in the second?"
        return Question("number", text, str(counts[0] - counts[1]), (), _first(scenes, test), steps=2)
    text = f"How many {what}s are in the {'two' if len(scenes) == 2 else 'three'} pictures together?"
    return Question("number", text, str(sum(counts)), (), _first(scenes, test), steps=2)


def _first(scenes: Sequence[Sequence[Thing]], test: Callable[[Thing], bool]) -> tuple[Thing, ...]:
    return tuple(filter(test, scenes[0]))


def _class_of(things: Sequence[Thing], draw: random.Random) -> tuple[str, Callable[[Thing], bool]]:
    """A class of things by its singular: all of them, those of a colour or of a shape; mostly one that is there."""
    thing = draw.choice(things)
    here = draw.random() < 0.8
    colour, shape = (thing.colour, thing.shape) if here else (draw.choice(list(COLOURS)), draw.choice(SHAPES))
    which = draw.choice(("all", "colour", "shape", "shape"))
    if which == "all":
        return "shape", lambda t: True
    if which == "colour":
        return f"{colour} shape", lambda t: t.colour == colour
    return shape, lambda t: t.shape == shape


# -- number -----------------------------------------------------------------------------------------------------------------


def how_many(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    what, test = _class_of(scene, draw)
    if what in SHAPES and draw.random() < 0.4:  # colour and shape of an existing one
        thing = draw.choice(scene)
        what, test = thing.name, lambda t: t.name == thing.name
    counted = tuple(filter(test, scene))
    return Question("number", f"How many {what}s are there?", str(len(counted)), (), counted, steps=1 + (what != "shape"))


# -- yes or no --------------------------------------------------------------------------------------------------------------


def is_there(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    there = draw.random() < 0.5
    names = {t.name for t in scene}
    others = [f"{c} {s}" for c in COLOURS for s in SHAPES if f"{c} {s}" not in names]
    name = draw.choice(sorted(names) if there else others)
    concerned = tuple(t for t in scene if t.name == name)
    return Question("yes-no", f"Is there a {name}?", "yes" if there else "no", (), concerned)


def is_left(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    single = _singles(scene)
    if len(single) < 2:
        return None
    first, second = draw.sample(single, 2)
    across = draw.random() < 0.5
    gap = second.x - first.x if across else second.y - first.y
    if abs(gap) < CLEAR:
        return None
    relation = "left of" if across else "above"
    text = f"Is the {first.name} {relation} the {second.name}?"
    return Question("yes-no", text, "yes" if gap > 0 else "no", (), (first, second), steps=2)


def more_than(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    counts = Counter(t.shape for t in scene)
    pairs = [(a, b) for a in SHAPES for b in SHAPES if a != b and counts[a] + counts[b]]
    wanted = draw.random() < 0.5
    pairs = [(a, b) for a, b in pairs if (counts[a] > counts[b]) == wanted]
    if not pairs:
        return None
    a, b = draw.choice(pairs)
    concerned = tuple(t for t in scene if t.shape in (a, b))
    return Question("yes-no", f"Are there more {a}s than {b}s?", "yes" if wanted else "no", (), concerned, steps=2)


# -- text -------------------------------------------------------------------------------------------------------------------


def what_colour(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    single = _only(scene, "shape")
    if not single:
        return None
    thing = draw.choice(single)
    return Question("text", f"What colour is the {thing.shape}?", thing.colour, (), (thing,))


def what_shape(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    single = _only(scene, "colour")
    if not single:
        return None
    thing = draw.choice(single)
    return Question("text", f"What shape is {thing.colour}?", thing.shape, (), (thing,))


def furthest(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    if len(scene) < 2:
        return None
    side = draw.choice(SIDES)
    place = {"left": lambda t: t.x, "right": lambda t: -t.x, "top": lambda t: t.y, "bottom": lambda t: -t.y}[side]
    first, second = sorted(scene, key=place)[:2]
    if place(second) - place(first) < CLEAR:
        return None
    asked, answer = draw.choice((("What colour is", first.colour), ("What shape is", first.shape)))
    return Question("text", f"{asked} the shape nearest to the {side}?", answer, (), (first,), steps=2)


# -- choice -----------------------------------------------------------------------------------------------------------------


def which_colour(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    single = _only(scene, "shape")
    if not single:
        return None
    thing = draw.choice(single)
    others = draw.sample([c for c in COLOURS if c != thing.colour], 3)
    return _choice(f"What colour is the {thing.shape}?", thing.colour, others, (thing,), draw)


def which_is_there(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    names = {t.name for t in scene}
    thing = draw.choice(scene)
    others = draw.sample([f"{c} {s}" for c in COLOURS for s in SHAPES if f"{c} {s}" not in names], 3)
    concerned = tuple(t for t in scene if t.name == thing.name)
    return _choice("Which of these is in the picture?", thing.name, others, concerned, draw, steps=2)


def which_corner(scene: Sequence[Thing], draw: random.Random) -> Question | None:
    clear = [t for t in _singles(scene) if min(abs(t.x - 0.5), abs(t.y - 0.5)) > CLEAR]
    if not clear:
        return None
    thing = draw.choice(clear)
    answer = f"{'top' if thing.y < 0.5 else 'bottom'} {'left' if thing.x < 0.5 else 'right'}"
    others = [c for c in CORNERS if c != answer]
    return _choice(f"In which part of the picture is the {thing.name}?", answer, others, (thing,), draw, steps=2)


def _choice(
    text: str, answer: str, others: Sequence[str], concerned: tuple[Thing, ...], draw: random.Random, steps: int = 1
) -> Question:
    options = [answer, *others]
    draw.shuffle(options)
    return Question("choice", text, letter_of(options.index(answer)), tuple(options), concerned, steps)


def _singles(scene: Sequence[Thing]) -> list[Thing]:
    """Things with a unique name."""
    counts = Counter(t.name for t in scene)
    return [t for t in scene if counts[t.name] == 1]


def _only(scene: Sequence[Thing], field: str) -> list[Thing]:
    """Things that are the only ones of their shape or colour."""
    counts = Counter(getattr(t, field) for t in scene)
    return [t for t in scene if counts[getattr(t, field)] == 1]


SINGLE: dict[str, tuple[Callable[[Sequence[Thing], random.Random], Question | None], ...]] = {
    "number": (how_many,),
    "yes-no": (is_there, is_left, more_than),
    "text": (what_colour, what_shape, furthest),
    "choice": (which_colour, which_is_there, which_corner),
}

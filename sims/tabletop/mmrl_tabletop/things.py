"""Colours, shapes and receptacles of objects on the table, and their sizes. Those held out from training are listed
separately."""

from __future__ import annotations

from dataclasses import dataclass

BOX, BALL, CYLINDER, CONE, PRISM = range(5)
"""Kinds of solid that the renderer knows."""

COLOURS = {
    "red": (0.86, 0.13, 0.12),
    "green": (0.12, 0.66, 0.20),
    "blue": (0.13, 0.28, 0.88),
    "yellow": (0.96, 0.80, 0.10),
    "purple": (0.52, 0.20, 0.72),
    "turquoise": (0.10, 0.74, 0.74),
    "orange": (0.98, 0.50, 0.08),
    "black": (0.09, 0.09, 0.10),
    "brown": (0.45, 0.27, 0.14),
    "white": (0.93, 0.93, 0.92),
    "grey": (0.55, 0.57, 0.60),
    "golden": (0.83, 0.66, 0.27),
    "silver": (0.76, 0.80, 0.85),
    "finger": (0.24, 0.26, 0.30),
    "open": (0.30, 0.33, 0.38),
    "closed": (0.98, 0.38, 0.62),
    "arm": (0.88, 0.88, 0.86),
    "joint": (0.32, 0.36, 0.42),
}
"""Name -> red, green and blue of 0 to 1; the last five are the robot's."""
NAMES = tuple(COLOURS)
SEEN_COLOURS = NAMES[:6]
UNSEEN_COLOURS = NAMES[6:9]
SEEN_PLATES = ("white", "grey")
UNSEEN_PLATES = ("golden", "silver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A solid that stands upright. Lengths in units of the `radius` option."""

    name: str
    kind: int
    half: tuple[float, float, float]
    """Half the width, depth and height; round shapes have the radius twice."""
    contact: float
    """Radius of the disc that stands for it in pushes."""
    flat: bool
    """Whether another object can stand on it."""
    fold: int
    """Rotational symmetry: it looks the same after a rotation by 360 / fold degrees; 0 for round shapes."""


SHAPES = (
    Shape(name="cube", kind=BOX, half=(0.78, 0.78, 0.78), contact=0.92, flat=True, fold=4),
    Shape(name="ball", kind=BALL, half=(0.92, 0.92, 0.92), contact=0.92, flat=False, fold=0),
    Shape(name="cylinder", kind=CYLINDER, half=(0.8, 0.8, 0.85), contact=0.8, flat=True, fold=0),
    Shape(name="cone", kind=CONE, half=(0.92, 0.92, 0.92), contact=0.8, flat=False, fold=0),
    Shape(name="prism", kind=PRISM, half=(0.78, 0.78, 0.78), contact=0.86, flat=True, fold=6),
)
SEEN_SHAPES = ("cube", "ball", "cylinder")
UNSEEN_SHAPES = ("cone", "prism")

RECEPTACLES = ("plate", "tray", "mat", "mark")
"""Trays and mats are held out from training; a mark is the goal of a push."""
PLATE, TRAY, MAT, MARK = range(4)
PLATE_KINDS = (CYLINDER, BOX, PRISM, CYLINDER)
PLATE_RADIUS = 0.115
"""Metres; an object is on a receptacle if its centre is within this times `ON_PLATE`."""
PLATE_HALF = (0.007, 0.007, 0.004, 0.0008)
"""Half the height of each, metres."""
ON_PLATE = 0.75


def shape_ids(names: tuple[str, ...]) -> tuple[int, ...]:
    """Indices in `SHAPES`."""
    every = [s.name for s in SHAPES]
    return tuple(every.index(name) for name in names)


def colour_ids(names: tuple[str, ...]) -> tuple[int, ...]:
    """Indices in `COLOURS`."""
    return tuple(NAMES.index(name) for name in names)

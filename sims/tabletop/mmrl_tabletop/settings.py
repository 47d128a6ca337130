"""The options of `tabletop/table`, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import UserError
from mmrl_tabletop.things import SEEN_COLOURS, SEEN_SHAPES, SHAPES

CAMERAS = ("front", "wrist", "top")
HORIZONS = {"reach": 12, "push": 28, "pick": 16, "put-on": 20, "stack": 20}
"""Task -> maximum steps of an episode, about twice what the expert needs."""
TASKS = tuple(HORIZONS)
FLAT_SHAPES = tuple(s.name for s in SHAPES if s.flat and s.name in SEEN_SHAPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of `Table`."""

    task: str
    size: int
    cameras: tuple[str, ...]
    dims: int
    distractors: int
    shapes: tuple[str, ...]
    colours: tuple[str, ...]
    alike: bool
    templates: int
    textures: int
    horizon: int
    step: float
    radius: float
    light: float
    noise: float
    samples: int
    expert_slop: float
    tracking: bool

    @property
    def objects(self) -> int:
        """Places for objects: the task's, the distractors, and one more for a variant."""
        return self.named + self.distractors + 1

    @property
    def named(self) -> int:
        """Objects that the instruction names."""
        return 2 if self.task == "stack" else 1

    @property
    def receptacles(self) -> int:
        """Places for receptacles: the task's, and one more for a variant."""
        return self.has_goal + 1

    @property
    def has_goal(self) -> int:
        """1 if the first receptacle is the object's goal."""
        return int(self.task in ("put-on", "push"))


def checked(**options: Any) -> Settings:
    """The options with defaults filled in. Raises UserError for invalid options."""
    for name in ("cameras", "shapes", "colours"):
        options[name] = _names(name, options[name])
    _one_of("task", options["task"], TASKS)
    for camera in options["cameras"]:
        _one_of("cameras", camera, CAMERAS)
    for shape in options["shapes"]:
        _one_of("shapes", shape, SEEN_SHAPES)
    for colour in options["colours"]:
        _one_of("colours", colour, SEEN_COLOURS)
    _one_of("dims", options["dims"], (4, 7))
    _one_of("tracking", options["tracking"], (False, True))
    _one_of("samples", options["samples"], (1, 2, 3, 4))
    _one_of("alike", options["alike"], (False, True))
    whole = {"size": (16, 1024), "distractors": (0, 4), "templates": (1, 6), "textures": (1, 6), "horizon": (1, 10_000)}
    real = {"step": (0.01, 0.2), "radius": (0.04, 0.08), "light": (0, 0.8), "noise": (0, 64), "expert_slop": (0, 1)}
    options["horizon"] = options["horizon"] if options["horizon"] is not None else HORIZONS[options["task"]]
    for name, (least, most) in whole.items():
        _within(name, options[name], int, least, most)
    for name, (low, high) in real.items():
        _within(name, options[name], float, low, high)
    settings = Settings(**options)
    if len(settings.colours) * len(settings.shapes) < settings.objects:
        raise UserError(
            f"{settings.objects} objects need as many pairs of a colour and a shape, but there are only "
            f"{len(settings.colours)} colours and {len(settings.shapes)} shapes: add some, or set fewer distractors"
        )
    if settings.tracking and (settings.task == "reach" or settings.expert_slop):
        raise UserError("tracking needs a task that moves an object, and an expert without slop: change task, or expert_slop")
    if settings.task == "stack" and not set(settings.shapes) & set(FLAT_SHAPES):
        raise UserError(f"task = 'stack' needs a flat shape in the option shapes: one of {', '.join(FLAT_SHAPES)}")
    return settings


def _names(option: str, value: Any) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence) or not given or len(set(map(str, given))) < len(given):
        raise UserError(f"{option} = {value!r} must be a list of one or more different names")
    return tuple(given)


def _one_of(option: str, value: Any, known: Sequence[Any]) -> None:
    if not any(type(value) is type(k) and value == k for k in known):
        raise UserError(f"{option}: {value!r} is not one of {', '.join(map(str, known))}")


def _within(option: str, value: Any, kind: type, low: float, high: float) -> None:
    numbers = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, numbers) or not low <= value <= high:
        raise UserError(f"{option} = {value!r} must be {'a whole number' if kind is int else 'a number'} of {low:g} to {high:g}")

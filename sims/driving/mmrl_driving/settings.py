"""The options of `driving/road`, checked, and what the two tasks differ in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import UserError

CAMERAS = ("top", "front")
OBSERVATIONS = ("rgb", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a task is about. Speeds are in metres per second, distances in metres."""

    slow: float
    """Below this speed the reward of speed falls to 0."""
    target: float
    fast: float
    """Greatest speed; the reward of speed is 0 there."""
    wide: float
    """Distance from the named lane's middle at which `centred` is 0. At a crossing the car has left its route there."""
    swing: float
    """Standard deviation of that distance at which `stable` is 0."""
    length: float
    """Way along the route to success."""
    horizon: int
    """Steps of an episode, about twice what the expert needs."""
    traffic: int
    """Other cars."""


KMH = 1 / 3.6
COURSES = {
    "crossing": Course(slow=20 * KMH, target=25 * KMH, fast=35 * KMH, wide=3.0, swing=0.4, length=36.0, horizon=80, traffic=4),
    "motorway": Course(slow=72 * KMH, target=90 * KMH, fast=126 * KMH, wide=9.0, swing=4.0, length=120.0, horizon=60, traffic=4),
}
"""Those of the crossing are VLM-RL's (config.py of its code: `reward_fn_5_default`)."""
TASKS = tuple(COURSES)
MOST_CARS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of `Road`."""

    task: str
    obs: str
    size: int
    cameras: tuple[str, ...]
    traffic: int
    templates: int
    horizon: int

    @property
    def course(self) -> Course:
        return COURSES[self.task]

    @property
    def places(self) -> int:
        """Places for other cars: two more for the variant with dense traffic."""
        return self.traffic + 2


def checked(**options: Any) -> Settings:
    """The options with defaults filled in. Raises UserError for invalid options."""
    _one_of("task", options["task"], TASKS)
    _one_of("obs", options["obs"], OBSERVATIONS)
    given = options["cameras"]
    cameras = (given,) if isinstance(given, str) else given
    if not isinstance(cameras, Sequence) or not cameras or len(set(map(str, cameras))) < len(cameras):
        raise UserError(f"cameras = {given!r} must be a list of one or more different names of {', '.join(CAMERAS)}")
    for camera in cameras:
        _one_of("cameras", camera, CAMERAS)
    course = COURSES[options["task"]]
    for name, default in (("traffic", course.traffic), ("horizon", course.horizon)):
        options[name] = default if options[name] is None else options[name]
    whole = {"size": (16, 1024), "traffic": (0, MOST_CARS), "templates": (1, 3), "horizon": (1, 10_000)}
    for name, (least, most) in whole.items():
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(f"{name} = {value!r} must be a whole number of {least} to {most}")
    return Settings(**options | {"cameras": tuple(cameras)})


def _one_of(option: str, value: Any, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise UserError(f"{option}: {value!r} is not one of {', '.join(known)}")

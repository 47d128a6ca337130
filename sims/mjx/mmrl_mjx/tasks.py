"""The tasks: their scenes, words, starts, and when they are done. n or N environments, K things, A dims. Metres, radians.

Only sums, products, quotients and roots, which round alike in every batch and on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mmrl.api.simulators.noise import uniform
from mmrl_mjx import models
from mmrl_mjx.models import ARM, CUBE, HOME, OPEN

START, PLACE, NAMED = 0, 1, 2
"""What a seed is used for."""
NEAR = 0.03
"""Greatest distance of the gripper from a ball that is reached."""
HIGH = 0.12
"""Height of the middle of a cube that is picked up."""
WIDE = 0.8
"""Radians of a door that is open."""
WIDTH = 0.48
"""Of the strip of the table in which things lie, along y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task."""

    words: str
    """The instruction; {a} is the named thing, {b} the other that a stack needs."""
    scene: Callable[[tuple[str, ...]], str]
    colours: tuple[str, ...]
    """Of its things, in the order of the scene."""
    parts: tuple[str, ...]
    max_steps: int


TASKS = {
    "reach": Task(
        words="reach the {a} ball", scene=models.balls, colours=("red", "green", "blue"), parts=("reached",), max_steps=40
    ),
    "pick": Task(
        words="pick up the {a} cube",
        scene=models.cubes,
        colours=("red", "green", "blue"),
        parts=("reached", "grasped", "lifted"),
        max_steps=60,
    ),
    "stack": Task(
        words="stack the {a} cube on the {b} cube",
        scene=models.cubes,
        colours=("red", "green", "blue"),
        parts=("reached", "grasped", "lifted", "placed"),
        max_steps=100,
    ),
    "door": Task(
        words="open the door with the {a} handle",
        scene=models.doors,
        colours=("red", "blue"),
        parts=("reached", "opened"),
        max_steps=100,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a task reads of N states."""

    grip: torch.Tensor
    """[N, 3]: the point between the fingertips."""
    gap: torch.Tensor
    """[N]: between the fingers."""
    closed: torch.Tensor
    """[N] bool: the gripper is told to close."""
    things: torch.Tensor
    """[N, K, 3]: balls, cubes or handles, the named one first, then the one to stack it on."""
    angles: torch.Tensor
    """[N, K]: how far the doors are open, in the same order; [N, 0] without doors."""
    hinges: torch.Tensor
    """[N, K, 3]: of the doors, in the same order; [N, 0, 3] without doors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Judgement of N states."""

    parts: dict[str, torch.Tensor]
    """Name -> float32 [N], 0 to 1."""
    success_N: torch.Tensor
    """bool."""
    dense_N: torch.Tensor
    """float32: the dense reward, 0 to 1."""


def order(task: Task, seeds_n: torch.Tensor) -> torch.Tensor:
    """int64 [n, K]: the things of an episode, the named one first. The rest keep a cyclic order, forward or backward."""
    first_n, way_n = uniform(seeds_n, NAMED, shape=(2,)).unbind(1)
    count = len(task.colours)
    first = (first_n * count).long()[:, None]
    steps = torch.arange(count, device=seeds_n.device)
    return torch.where(way_n[:, None] < 0.5, first + steps, first - steps) % count


def instruction(task: Task, order: list[int]) -> str:
    """The words of an episode."""
    names = [task.colours[i] for i in order]
    return task.words.format(a=names[0], b=names[1])


def start(task: Task, seeds_n: torch.Tensor) -> dict[str, torch.Tensor]:
    """Name -> rows of MuJoCo's state at the start: the arm near its home, and things in strips of their own, so that none
    touches another."""
    n, count = len(seeds_n), len(task.colours)
    wobble = 0.1 * (uniform(seeds_n, START, shape=(ARM,)) - 0.5)
    arm = torch.tensor(HOME, device=seeds_n.device) + wobble
    if task.scene is models.doors:
        arm[:, 3] -= 0.3  # farther from the doors
    fingers = arm.new_full((n, 2), OPEN)
    ctrl = torch.cat([arm, fingers], 1)
    x, y, z, turn, shift, way = uniform(seeds_n, PLACE, shape=(6, count)).unbind(1)
    strip = torch.arange(count, device=seeds_n.device)
    strip = torch.where(way[:, :1] < 0.5, strip, count - 1 - strip) + (shift[:, :1] * count).long()
    width = WIDTH / count
    y = ((strip % count) + 0.5) * width - WIDTH / 2 + (y - 0.5) * (width - 5 * CUBE)
    if task.scene is models.doors:
        return {"qpos": torch.cat([ctrl, torch.zeros_like(x)], 1), "ctrl": ctrl}
    if task.scene is models.balls:
        places = torch.stack([0.4 + 0.25 * x, y, 0.06 + 0.34 * z], 2)
        return {"qpos": ctrl.clone(), "ctrl": ctrl, "mocap_pos": places}
    tangent = 0.3 * (turn - 0.5)  # of half the cube's turn
    length = (1 + tangent * tangent).sqrt()
    flat = torch.zeros_like(x)
    poses = torch.stack([0.44 + 0.16 * x, y, flat + CUBE, 1 / length, flat, flat, tangent / length], 2)
    return {"qpos": torch.cat([ctrl, poses.flatten(1)], 1), "ctrl": ctrl}


def judge(name: str, scene: Scene) -> Judgement:
    """The judgement of each state. name: of the task."""
    named = scene.things[:, 0]
    reached = closeness(scene.grip, named)
    if name == "reach":
        success = distance(scene.grip, named) < NEAR
        return _judged({"reached": reached}, success, 0.5 * reached + 0.5 * success)
    if name == "door":
        wide = scene.angles[:, 0]
        opened, success = (wide / WIDE).clamp(0, 1), wide > WIDE
        return _judged({"reached": reached, "opened": opened}, success, 0.3 * reached + 0.4 * opened + 0.3 * success)
    grasped = is_grasped(scene)
    lifted = ((named[:, 2] - CUBE) / (HIGH - CUBE)).clamp(0, 1) * grasped
    parts = {"reached": reached, "grasped": grasped.float(), "lifted": lifted}
    if name == "pick":
        success = grasped & (named[:, 2] > HIGH)
        return _judged(parts, success, 0.25 * (reached + grasped + lifted + success))
    below = scene.things[:, 1]
    rest = below + below.new_tensor((0.0, 0.0, 2 * CUBE))
    aside = distance(named[:, :2], below[:, :2])
    success = (aside < 0.6 * CUBE) & ((named - rest)[:, 2].abs() < 0.3 * CUBE) & ~scene.closed & (scene.gap > 2.6 * CUBE)
    placed = closeness(named, rest) * (grasped | success)
    dense = torch.where(success, 1.0, 0.25 * (reached + grasped + placed))
    return _judged(parts | {"placed": placed}, success, dense)


def is_grasped(scene: Scene) -> torch.Tensor:
    """bool [N]: the gripper is told to close, and the named cube is between the fingers and keeps them apart."""
    near = distance(scene.grip, scene.things[:, 0]) < 1.2 * CUBE
    return scene.closed & near & (scene.gap > 1.6 * CUBE) & (scene.gap < 2.9 * CUBE)


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[N]: Euclidean, of [N, 2] or [N, 3]."""
    squares = [d * d for d in (a - b).unbind(1)]
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    return total.sqrt()


def closeness(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[N] of 0 to 1: 1 at the same place, a half at 10 cm."""
    return 1 / (1 + 10 * distance(a, b))


def _judged(parts: dict[str, torch.Tensor], success: torch.Tensor, dense: torch.Tensor) -> Judgement:
    return Judgement(parts=parts, success_N=success, dense_N=dense.float())

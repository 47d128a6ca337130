"""A scripted expert for tasks that lift one thing, or put it onto or into another: it sees poses, no pictures, and keeps no
state.

A thing that isn't held: go above it, turn the fingers along its sides, go down, close. One that is: lift, carry, lower, open,
rise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

METRE, RADIAN = 0.05, 0.5
"""What an action of 1 is."""
ABOVE, CLEAR, NEAR, DEEP = 0.08, 0.1, 0.012, 0.035
"""Metres: height above a thing from which the hand goes down, height above the target at which it carries, distance that is near
enough to go down, and how far below the top of a tall thing the fingers take it."""
TURNED = 0.1
"""Radians that are near enough."""
OPEN, CLOSE = -1.0, 1.0


@dataclass(frozen=True)
class Job:
    """What is to be done with a thing."""

    thing: Any
    """robosuite's model of it."""
    place: Any
    """float64 [3]: its middle, metres."""
    turn: Any
    """float64 [3, 3]: its orientation."""
    target: Any = None
    """float64 [3]: where its middle is let go, metres; None if it is only lifted."""
    room: float = 0.015
    """Metres from the target, horizontally, in which it is let go."""

    @property
    def grip(self) -> Any:
        """3 numbers: where the fingers take it."""
        return over(self.place, max(0.0, self.thing.top_offset[2] - DEEP))


def act(env: Any) -> list[float]:
    """The action now, of 7 numbers. env: robosuite's."""
    job, hand = _job(env), Hand(env)
    held = env._check_grasp(gripper=env.robots[0].gripper, object_geoms=job.thing)
    if job.target is None:
        return hand.towards(over(hand.place, ABOVE), job, CLOSE) if held else take(hand, job)
    away = math.dist(job.place[:2], job.target[:2])
    if away < 2 * job.room and job.place[2] - job.target[2] < 0.01:
        return hand.towards(hand.place if held else over(hand.place, ABOVE), job, OPEN)
    return carry(hand, job, away) if held else take(hand, job)


def take(hand: Hand, job: Job) -> list[float]:
    """Above the thing, down with open fingers, and close them."""
    x, y, z = job.grip
    height, gap = hand.place[2] - z, math.dist((x, y), hand.place[:2])
    if gap > (NEAR if height > 0.03 else 2 * NEAR) or (height > 0.03 and hand.off(job) > TURNED):
        near = gap < 2 * NEAR or height > ABOVE - 0.03
        return hand.towards((x, y, z + ABOVE) if near else (*hand.place[:2], z + ABOVE), job, OPEN)
    return hand.towards((x, y, z), job, OPEN if height > 0.008 else CLOSE)


def carry(hand: Hand, job: Job, away: float) -> list[float]:
    """Up, over the target, and down to it."""
    risen = job.place[2] - job.target[2]
    to = job.target - job.place + hand.place
    if away < job.room:
        return hand.towards(to, job, CLOSE)
    if risen < CLEAR - 0.03:
        return hand.towards((*hand.place[:2], hand.place[2] + CLEAR - risen), job, CLOSE)
    return hand.towards((*to[:2], hand.place[2] + CLEAR - risen), job, CLOSE)


class Hand:
    """The gripper of the first robot."""

    def __init__(self, env: Any) -> None:
        site = env.robots[0].eef_site_id["right"]
        self.place = env.sim.data.site_xpos[site].copy()
        self.turn = env.sim.data.site_xmat[site].reshape(3, 3).copy()

    def off(self, job: Job) -> float:
        """Radians by which it is turned about the vertical from the thing's sides: between -pi/4 and pi/4."""
        mine, its = (math.atan2(axes[1, 0], axes[0, 0]) for axes in (self.turn, job.turn))
        return abs(_quarter(its - mine))

    def towards(self, place: Any, job: Job, fingers: float) -> list[float]:
        """An action that brings it to a place, straight down and along the thing's sides."""
        import numpy
        from robosuite.utils import transform_utils as turns

        mine, its = (math.atan2(axes[1, 0], axes[0, 0]) for axes in (self.turn, job.turn))
        yaw = mine + _quarter(its - mine)
        x = numpy.array([math.cos(yaw), math.sin(yaw), 0.0])
        down = numpy.array([0.0, 0.0, -1.0])
        wanted = numpy.stack([x, numpy.cross(down, x), down], axis=1)
        turn = turns.quat2axisangle(turns.mat2quat(wanted @ self.turn.T))
        move = numpy.concatenate([(numpy.asarray(place) - self.place) / METRE, turn / RADIAN]).clip(-1, 1)
        return [*move.tolist(), fingers]


def as_pose(env: Any, move: list[float], units: Any) -> list[float]:
    """The pose that a difference leads to, as an absolute action."""
    import numpy
    from robosuite.utils import transform_utils as turns

    controller = env.robots[0].part_controllers["right"]
    change = numpy.asarray(move[:6]) * ([METRE] * 3 + [RADIAN] * 3)
    to = turns.quat2mat(turns.axisangle2quat(change[3:])) @ controller.ref_ori_mat
    pose = numpy.concatenate([controller.ref_pos + change[:3], turns.quat2axisangle(turns.mat2quat(to))])
    return [*(pose / units[:6]).tolist(), move[6]]


def _job(env: Any) -> Job:
    name = type(env).__name__
    if name == "Lift":
        return _seen(env, env.cube, env.cube_body_id)
    if name == "Stack":
        below = env.sim.data.body_xpos[env.cubeB_body_id]
        return _seen(env, env.cubeA, env.cubeA_body_id, over(below, env.cubeA.size[2] + env.cubeB.size[2] + 0.005))
    thing = env.objects[env.object_id]
    bin_ = env.target_bin_placements[env.object_id]
    return _seen(env, thing, env.obj_body_id[thing.name], over(bin_, 0.01 - thing.bottom_offset[2]), 0.04)


def _seen(env: Any, thing: Any, body: int, *goal: Any) -> Job:
    data = env.sim.data
    return Job(thing, data.body_xpos[body].copy(), data.body_xmat[body].reshape(3, 3).copy(), *goal)


def over(place: Any, metres: float) -> Any:
    """float64 [3]: so much above a place."""
    import numpy

    return numpy.array([place[0], place[1], place[2] + metres])


def _quarter(angle: float) -> float:
    """The angle less whole right angles: fingers close along either side."""
    return (angle + math.pi / 4) % (math.pi / 2) - math.pi / 4

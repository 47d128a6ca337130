"""A scripted expert for tasks that put one thing on or into another, or turn a knob: it sees poses, no pictures, and keeps no
state.

A thing that isn't held: go above it, turn the fingers to its narrow side, go down, close. One that is: lift, carry, lower, open.
Things that are wider than the hand are taken by their rim.
"""

from __future__ import annotations

import math
from typing import Any

GAIN, TURN_GAIN = 20.0, 0.8
"""Speed for each metre of distance, and for each radian, in units of an action."""
STILL, STALLED = 0.01, 4.0
"""Metres a second below which the hand stands still, and how many times faster it is then told to go: near the ends of its reach
the controller holds it centimetres off, without any contact."""
RADIAN = 0.5
"""Of an action of 1."""
OPENING = 0.072
"""Widest thing between the fingers, metres."""
ABOVE, CLEAR, NEAR = 0.10, 0.12, 0.012
"""Metres: height from which it goes down, height at which it carries, distance that is near enough."""
BESIDE = 0.03
"""Metres from the place above a thing within which the hand moves aside without going up again."""
RIM, DEEP = 0.014, 0.028
"""Metres from the edge and below the top at which a rim is taken."""
DROP = {"on": 0.01, "in": 0.02}
"""Goal -> metres above the target from which a thing is let go."""
OVER = 0.015
"""Metres from the target, horizontally, in which a thing is let go."""
GOALS = (*DROP, "turnon")
OPEN, CLOSE = -1.0, 1.0
KNOB = 0.015
"""Metres below the top of a knob at which it is pushed."""
PUSH = 0.05
"""Metres from the end of a knob's bar, on either side, from where and to where it is pushed."""


def act(env: Any) -> list[float]:
    """The action now. env: robosuite's environment."""
    left = [goal for goal in env.parsed_problem["goal_state"] if goal[0] in GOALS and not env._eval_predicate(goal)]
    goal = min(left, key=lambda goal: goal[0] in DROP, default=None)  # a knob comes first
    hand = Hand(env)
    if goal is None:  # done, or nothing that it can do: leave the thing
        return hand.towards(hand.above(0.05), None, OPEN)
    if goal[0] == "turnon":
        return turn(hand, Knob(env, env.get_object(goal[1]).joints[0]))
    thing, target = Thing(env, goal[1]), place_of(env, goal[2])
    drop = float(target[2]) + DROP[goal[0]]
    if math.dist(thing.place[:2], target[:2]) < OVER and thing.bottom - drop < 0.03:
        return hand.towards(hand.place, None, OPEN)
    if hand.holds(thing):
        return carry(hand, thing, target, drop)
    return take(hand, thing)


def carry(hand: Hand, thing: Thing, target: Any, drop: float) -> list[float]:
    """Up, over the target, and down to `drop`, the height in metres at which the thing is let go."""
    risen = thing.bottom - drop
    x, y = (target - thing.place + hand.place)[:2]
    if math.dist((x, y), hand.place[:2]) <= NEAR * (1 if risen > CLEAR - 0.03 else 2):
        return hand.towards((x, y, hand.place[2] - risen), None, CLOSE)
    if risen < CLEAR - 0.03:
        x, y, _ = hand.place
    return hand.towards((x, y, hand.place[2] + CLEAR - risen), None, CLOSE)


def take(hand: Hand, thing: Thing) -> list[float]:
    """Above the thing, down with open fingers, and close them; up again where they closed and hold nothing."""
    (x, y, z), axis = thing.grasp(hand)
    height, gap = hand.place[2] - z, math.dist((x, y), hand.place[:2])
    if hand.closing > 0.99 or (hand.closing > -0.99 and height > 0.02):
        return hand.towards(hand.above(0.03), None, OPEN)
    if gap > NEAR * (1 if height > 0.03 else 2):
        over = max(z, thing.top) + ABOVE
        if height < ABOVE - 0.04 and gap < 0.25:
            x, y, over = (x, y, hand.place[2]) if gap < BESIDE else (*hand.place[:2], over)
        return hand.towards((x, y, over), axis, OPEN)
    if height > 0.008 or hand.turn_to(axis) > 0.15:
        return hand.towards((x, y, z), axis, OPEN)
    return hand.towards((hand.place[0], hand.place[1], z - 0.01), None, CLOSE)


def turn(hand: Hand, knob: Knob) -> list[float]:
    """Beside the end of a knob's bar, down, and round its axis, with closed fingers."""
    import numpy

    ahead = numpy.cross(knob.axis, (knob.end - knob.anchor) * [1.0, 1.0, 0.0])
    ahead /= numpy.linalg.norm(ahead)
    begin = knob.end - ahead * PUSH
    if hand.place[2] < knob.end[2] + KNOB and math.dist(hand.place[:2], knob.end[:2]) < 2 * PUSH:
        return hand.towards(knob.end + ahead * PUSH, ahead, CLOSE)
    if math.dist(begin[:2], hand.place[:2]) > NEAR:
        return hand.towards((begin[0], begin[1], knob.end[2] + ABOVE), ahead, CLOSE)
    return hand.towards(begin, ahead, CLOSE)


class Knob:
    """A bar that turns about a joint."""

    def __init__(self, env: Any, joint: str) -> None:
        import numpy

        model, data = env.sim.model._model, env.sim.data._data
        number = env.sim.model.joint_name2id(joint)
        body = int(model.jnt_bodyid[number])
        geoms = range(int(model.body_geomadr[body]), int(model.body_geomadr[body] + model.body_geomnum[body]))
        solid = [env.sim.model.geom_id2name(geom) for geom in geoms if model.geom_contype[geom] or model.geom_conaffinity[geom]]
        self.anchor, self.axis = numpy.array(data.xanchor[number]), numpy.array(data.xaxis[number])
        bar = max((_corners(env, geom) for geom in solid), key=lambda box: float(box[:, 2].max()))
        edges = [bar[1] - bar[0], bar[2] - bar[0], bar[4] - bar[0]]
        along = max(edges, key=lambda edge: float(numpy.linalg.norm(edge[:2])))
        along = along * numpy.sign(along[0]) / numpy.linalg.norm(along)  # away from the robot
        farthest = bar[bar @ along > (bar @ along).max() - 1e-6].mean(0)
        x, y = farthest[:2] * 0.85 + self.anchor[:2] * 0.15
        self.end = numpy.array([x, y, float(bar[:, 2].max()) - KNOB])
        """float64 [3]: where it is pushed."""


class Hand:
    """The gripper's pose and fingers."""

    def __init__(self, env: Any) -> None:
        import numpy

        self.env, self.gripper = env, env.robots[0].gripper
        data, model = env.sim.data, env.sim.model
        site = model.site_name2id(self.gripper.important_sites["grip_site"])
        self.place = numpy.array(data.site_xpos[site])
        self.turn = numpy.array(data.site_xmat[site]).reshape(3, 3)
        self.fingers = self.turn[:, 0]
        self.opening = sum(abs(float(data.get_joint_qpos(name))) for name in self.gripper.joints)
        self.closing = float(self.gripper.current_action[1])  # -1 to 1, a quarter in a step
        self.speed = float(numpy.linalg.norm(data.get_site_xvelp(self.gripper.important_sites["grip_site"])))

    def above(self, metres: float) -> Any:
        x, y, z = self.place
        return x, y, z + metres

    def holds(self, thing: Thing) -> bool:
        """Whether the fingers were told to close, long enough to have done so, touch it and have something between them."""
        sides = (self.gripper.important_geoms[f"{side}_finger"] for side in ("left", "right"))
        return self.closing > 0.99 and self.opening > 0.004 and any(self.env.check_contact(side, thing.geoms) for side in sides)

    def turn_to(self, axis: Any) -> float:
        """Radians between the fingers' axis and this one, horizontally, 0 to pi/2."""
        return abs(_angle(self.fingers, axis))

    def towards(self, place: Any, axis: Any, grip: float) -> list[float]:
        """An action to this place, pointing down, with the fingers along an axis (None: as they are)."""
        import numpy

        stuck = STALLED if self.speed < STILL else 1.0
        move = numpy.clip((numpy.asarray(place) - self.place) * GAIN * stuck, -1, 1)
        down = numpy.cross(self.turn[:, 2], [0.0, 0.0, -1.0])  # the rotation that makes it point down
        yaw = 0.0 if axis is None else _angle(self.fingers, axis)
        spin = numpy.clip((down + numpy.array([0.0, 0.0, yaw])) * TURN_GAIN / RADIAN, -1, 1)
        return [*map(float, move), *map(float, spin), grip]


class Thing:
    """A movable object: where it is and how it can be taken."""

    def __init__(self, env: Any, name: str) -> None:
        import numpy

        self.env = env
        self.geoms = env.get_object(name).contact_geoms
        body = env.obj_body_id[name]
        self.place = numpy.array(env.sim.data.body_xpos[body])
        self.turn = numpy.array(env.sim.data.body_xmat[body]).reshape(3, 3)
        self.points = numpy.concatenate([_corners(env, geom) for geom in self.geoms])
        self.bottom, self.top = float(self.points[:, 2].min()), float(self.points[:, 2].max())

    def grasp(self, hand: Hand) -> tuple[Any, Any]:
        """Where the fingers close, and the horizontal axis along which they do."""
        import numpy

        best = None
        for number in range(12):
            angle = math.pi * number / 12
            axis = numpy.array([math.cos(angle), math.sin(angle), 0.0])
            along = self.points[:, :2] @ axis[:2]
            width = float(along.max() - along.min())
            cost = (max(width, 0.03), hand.turn_to(axis))
            if best is None or cost[0] < best[0][0] - 0.004 or (cost[0] < best[0][0] + 0.004 and cost[1] < best[0][1]):
                best = cost, axis, width, (along.max() + along.min()) / 2
        assert best
        _, axis, width, _ = best
        middle = (self.points[:, :2].max(0) + self.points[:, :2].min(0)) / 2
        depth = min(0.03, (self.top - self.bottom) / 2)
        if width > OPENING:  # by the rim that is nearer to the middle of the table
            axis = numpy.array([0.0, 1.0, 0.0])
            reach = (self.points[:, 1].max() - self.points[:, 1].min()) / 2 - RIM
            side = -1.0 if middle[1] > 0 else 1.0
            return numpy.array([middle[0], middle[1] + side * reach, self.top - DEEP]), axis
        return numpy.array([middle[0], middle[1], self.top - depth]), axis


def place_of(env: Any, name: str) -> Any:
    """float64 [3]: where a thing or a region is."""
    import numpy

    if name in env.object_sites_dict:
        return numpy.array(env.sim.data.get_site_xpos(name))
    return numpy.array(env.sim.data.body_xpos[env.obj_body_id[name]])


def _corners(env: Any, geom: str) -> Any:
    """float64 [8, 3]: the corners of a geom's bounding box in the world."""
    import numpy

    model, data = env.sim.model._model, env.sim.data._data
    number = env.sim.model.geom_name2id(geom)
    middle, half = model.geom_aabb[number, :3], model.geom_aabb[number, 3:]
    signs = numpy.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    return data.geom_xpos[number] + (middle + signs * half) @ data.geom_xmat[number].reshape(3, 3).T


def _angle(first: Any, second: Any) -> float:
    """Radians about the vertical from one axis to another, neither of which has a direction: -pi/2 to pi/2."""
    turn = math.atan2(second[1], second[0]) - math.atan2(first[1], first[0])
    return (turn + math.pi / 2) % math.pi - math.pi / 2

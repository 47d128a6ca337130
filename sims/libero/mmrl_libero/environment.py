"""One environment of LIBERO in a worker process, see `mmrl.api.simulators.processes`. Imports nothing of mmrl.

A process holds one task's scene at a time, and builds another when an episode asks for it: one to three seconds.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


def _beside(name: str) -> Any:
    """Imports a module of this folder by its path, as another interpreter may not have the package."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


packages, snapshots, experts = _beside("packages"), _beside("snapshots"), _beside("experts")
Refused = packages.Refused
NOTHING = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""The action of settling: stay, with an open gripper."""
PEOPLE = 256
"""Least side in pixels of the pictures for human viewers."""
PROPRIOCEPTION = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
BASE = ""
"""Stands for no variant among names of variants."""


class Environment:
    """Tasks of a suite; a seed chooses the task and its initial state."""

    def __init__(
        self,
        suites: dict[str, tuple[str, str]],
        bddl: str | None,
        states: str | None,
        task: int | str | None,
        initial_states: tuple[int, ...] | None,
        cameras: dict[str, str],
        size: int,
        turned: list[str],
        poses: tuple[float, ...] | None,
        deltas: tuple[float, ...],
        settling: int,
        placement_seed: int,
        assets: str | None,
        objects: bool = False,
    ) -> None:
        """suites: variant -> (LIBERO's name, where instructions come from), `""` for the one of training; empty with `bddl`.
        bddl, states: files of a task of one's own. cameras: ours -> robosuite's, empty for no pictures. turned: those
        whose pictures are turned. poses: units of absolute actions, None for differences. deltas: units of differences. The
        others: see `mmrl_libero.simulator.Libero`."""
        package = packages.find()
        folder, _ = packages.assets(package, assets)
        self.tables = (
            own_task(bddl, states) if bddl else {name: packages.tasks(package, *suite) for name, suite in suites.items()}
        )
        self.chosen = chosen(task, self.tables[BASE])
        self.initial_states = initial_states
        self.cameras, self.size, self.turned, self.settling, self.placement_seed = cameras, size, turned, settling, placement_seed
        self.poses, self.deltas = poses, deltas
        self.objects = objects
        with explained(f"LIBERO can't be imported with {packages.versions()}"):
            self.envs = packages.enter(package, folder)
            self.eyes = Eyes()
        self.made: Any = None
        self.states: Any = None
        self.fresh: dict[str, Any] = {}
        self.key: tuple[str, int] | None = None
        self.facts = {
            "dims": len(NOTHING),
            "instructions": {name: [table[number].instruction for number in self.chosen] for name, table in self.tables.items()},
        }

    def reset(self, seed: int, variant: str | None) -> dict[str, Any]:
        """The scene as it is freshly built, then the published state, then settling. Nothing is drawn but what is returned."""
        self._open(variant or BASE, self.chosen[seed % len(self.chosen)])
        number = seed // len(self.chosen)
        states = self.states
        wanted = range(len(states)) if self.initial_states is None else self.initial_states
        if not 0 <= (row := wanted[number % len(wanted)]) < len(states):
            raise Refused(f"initial_states has {row}, and {self._what()} has {len(states)} states: give numbers from 0")
        self._check_state(states[row])
        self.eyes.shut = self.settling > 0
        self._controller.use_delta = True
        self.shown = self.made.set_init_state(states[row])
        for left in reversed(range(self.settling)):
            self.eyes.shut = left > 0
            self.shown, *_ = self.made.step(list(NOTHING))
        self._controller.use_delta = not self.poses
        return self._rows(0.0, bool(self.made.check_success()))

    def step(self, action: Any) -> dict[str, Any]:
        asked = action.astype("float64")
        if self.poses:
            asked[:6] *= self.poses[:6]
        self.shown, reward, success, _ = self.made.step(asked)
        return self._rows(float(reward), bool(success))

    def expert(self) -> list[float]:
        """What the scripted expert would do now; changes nothing."""
        import numpy
        from robosuite.utils import transform_utils as turns

        move = experts.act(self.made.env)
        if not self.poses:
            return move
        change = numpy.asarray(move[:6]) * self.deltas[:6]
        place, turn = self._pose()
        to = turns.quat2mat(turns.axisangle2quat(change[3:])) @ turns.quat2mat(turns.axisangle2quat(turn))
        pose = numpy.concatenate([place + change[:3], axis_angle(turns.mat2quat(to))]) / self.poses[:6]
        return [*pose.tolist(), move[6]]

    def snapshot(self) -> dict[str, Any]:
        """The task, the whole state of its simulation, and what was shown last."""
        shown = {name: self.shown[name].copy() for name in (*PROPRIOCEPTION, *map(image, self.cameras.values()))}
        return {"key": self.key, "state": snapshots.take(self.made.env), "shown": shown}

    def restore(self, state: dict[str, Any]) -> dict[str, Any]:
        name, task = state["key"]
        if name not in self.tables or task >= len(self.tables[name]):
            raise Refused(f"the snapshot is of task {task} of {name or 'the suite'}, which this environment doesn't have")
        self._open(name, task)
        lacks = [name for name in map(image, self.cameras.values()) if name not in state["shown"]]
        if len(self.fresh["physics"]) != len(state["state"]["physics"]) or lacks:
            raise Refused(f"the snapshot is of another task than {self._what()}, or of other cameras")
        snapshots.put(self.made.env, state["state"])
        self.made._post_process()
        self.shown = state["shown"]
        return self._rows(0.0, bool(self.made.check_success()))

    def render(self) -> tuple[int, int, bytes]:
        """Height, width and bytes of a picture for human viewers."""
        if not self.cameras:
            raise Refused("pictures can't be rendered: rendering is none")
        side = max(PEOPLE, self.size)
        picture = self._turned(self.made.sim.render(camera_name="agentview", width=side, height=side), "agentview")
        return side, side, picture.tobytes()

    def _open(self, name: str, task: int) -> None:
        """Builds a task's scene, or takes the one that is there back to where it was when it was built.

        What a reset of LIBERO draws (the places of fixtures) depends on numpy's global generator, and an initial state doesn't
        have it; so each episode begins with the same draw.
        """
        import numpy

        if (name, task) == self.key:
            snapshots.put(self.made.env, self.fresh)
            return
        if self.made:
            self.made.close()
            self.made = self.key = None
            gc.collect()
        this = self.tables[name][task]
        self.states = packages.initial_states(this.states)
        self.eyes.shut = True
        with explained(f"{this.name} can't be made with {packages.versions()}"):
            self.made = self.envs.env_wrapper.ControlEnv(
                bddl_file_name=str(this.bddl),
                use_camera_obs=bool(self.cameras),
                has_offscreen_renderer=bool(self.cameras),
                camera_names=list(self.cameras.values()),
                camera_heights=self.size,
                camera_widths=self.size,
                ignore_done=True,
            )
            numpy.random.seed(self.placement_seed)
            self.made.reset()
        self.eyes.shut = False
        self.key, self.fresh = (name, task), snapshots.take(self.made.env)

    def _check_state(self, state: Any) -> None:
        (numbers,) = self.made.get_sim_state().shape
        if len(state) != numbers:
            raise Refused(
                f"an initial state of {self._what()} has {len(state)} numbers, and its scene {numbers}: "
                "the states are those of another task or version"
            )

    def _rows(self, reward: float, success: bool) -> dict[str, Any]:
        import numpy

        obs, env = self.shown, self.made.env
        goals = env.parsed_problem["goal_state"]
        met = sum(bool(env._eval_predicate(goal)) for goal in goals) / len(goals)
        place, turn, fingers = (obs[name] for name in PROPRIOCEPTION)
        place, turn = self._pose() if self.poses else (place, axis_angle(turn))
        return {
            **{f"camera/{name}": self._turned(obs[image(camera)], name) for name, camera in self.cameras.items()},
            "state": numpy.concatenate([place, turn, fingers, *self._objects(place)]).astype("float32"),
            "reward": numpy.array(reward, numpy.float32),
            "success": numpy.array(success),
            "terminated": numpy.array(False),
            "truncated": numpy.array(False),
            "part/goals": numpy.array(met, numpy.float32),
        }

    def _objects(self, hand: Any) -> list[Any]:
        """Where the things of the goal are, each float64 [3] in metres from the hand; none without the option."""
        return [experts.place_of(self.made.env, name) - hand for name in named(self.made.env)] if self.objects else []

    def _turned(self, picture: Any, camera: str) -> Any:
        import numpy

        return numpy.ascontiguousarray(picture[::-1, ::-1] if camera in self.turned else picture)

    @property
    def _controller(self) -> Any:
        return self.made.env.robots[0].controller

    def _pose(self) -> tuple[Any, Any]:
        """Place in metres and axis times angle of what absolute actions move: the middle between the fingers, which is turned
        from the hand of `robot0_eef_quat`. They are as old as the controller's last step, as in X-VLA's evaluation."""
        from robosuite.utils import transform_utils as turns

        return self._controller.ee_pos.copy(), axis_angle(turns.mat2quat(self._controller.ee_ori_mat))

    def _what(self) -> str:
        assert self.key
        return self.tables[self.key[0]][self.key[1]].name


class Eyes:
    """Whether anything is rendered. robosuite samples pictures in the course of a step, a few milliseconds before its end, and in
    each reset several times; they stay where they are, and what nobody sees is left blank."""

    def __init__(self) -> None:
        import numpy
        from robosuite.utils.binding_utils import MjSim

        self.shut = False
        render = MjSim.render

        def draw(sim: Any, width: int, height: int, **options: Any) -> Any:
            return numpy.zeros((height, width, 3), numpy.uint8) if self.shut else render(sim, width, height, **options)

        MjSim.render = draw


def named(env: Any) -> list[str]:
    """The things and regions that the goal names, in its order."""
    known = {*env.object_sites_dict, *env.obj_body_id}
    return list(dict.fromkeys(name for goal in env.parsed_problem["goal_state"] for name in goal[1:] if name in known))


def image(camera: str) -> str:
    """The name of a camera's pictures in robosuite's observations."""
    return f"{camera}_image"


def own_task(bddl: str, states: str | None) -> dict[str, list[Any]]:
    """The table of one task of the user's. Raises Refused for files that can't be."""
    file = Path(bddl).expanduser()
    if not states:
        raise Refused(f"{file} needs initial states: give their file with the option states")
    return {BASE: [packages.Task(file.stem, packages.language(file), file, Path(states).expanduser())]}


def chosen(task: int | str | None, table: list[Any]) -> list[int]:
    """The numbers of the tasks that are played: all, or the one with this number or name."""
    if task is None:
        return list(range(len(table)))
    names = [each.name for each in table]
    if isinstance(task, str) and task in names:
        return [names.index(task)]
    if isinstance(task, int) and not isinstance(task, bool) and 0 <= task < len(table):
        return [task]
    raise Refused(f"there is no task {task!r}: give a number from 0 to {len(table) - 1}, or a name such as {names[0]}")


def axis_angle(quaternion: Any) -> Any:
    """float64 [3]: x, y, z, w as an axis times an angle from 0 to 2 pi, as the published policies read it."""
    import math

    import numpy

    w = float(numpy.clip(quaternion[3], -1.0, 1.0))
    length = math.sqrt(1.0 - w * w)
    if math.isclose(length, 0.0):
        return numpy.zeros(3)
    return numpy.asarray(quaternion[:3]) * 2.0 * math.acos(w) / length


@contextlib.contextmanager
def explained(what: str) -> Any:
    """Turns what LIBERO raises into one line with the cure."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        way = os.environ.get("MUJOCO_GL", "")
        cure = "take LIBERO's assets whole, the versions of sims/libero/constraints.txt, and a MUJOCO_GL that works here"
        raise Refused(f"{what} (MUJOCO_GL = {way!r}): {type(error).__name__}: {packages.said(error)}: {cure}") from error

"""The whole state of a robosuite environment as plain data: MuJoCo's, and what robosuite keeps beside it.

MuJoCo's integration state alone has another future: the controller keeps its goal, the gripper its opening, and observations are
sampled with clocks of their own. Places of fixtures are numbers of the model. Written for robosuite 1.4.
"""

from __future__ import annotations

import copy
from typing import Any

PLACES = ("body_pos", "body_quat", "site_pos", "site_rgba")
"""Arrays of the model that a reset or an episode changes."""
COUNTERS = ("timestep", "cur_time", "done")
OBSERVED = ("_time_since_last_sample", "_current_delay", "_current_observed_value", "_sampled")
BUFFERS = ("DeltaBuffer", "RingBuffer")


def take(env: Any) -> dict[str, Any]:
    """env: of robosuite, not its wrapper."""
    import mujoco
    import numpy

    model, data, robot = env.sim.model._model, env.sim.data._data, env.robots[0]
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    physics = numpy.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, physics, kind)
    return copy.deepcopy(
        {
            "physics": physics,
            "places": {name: getattr(model, name) for name in PLACES},
            "counters": {name: getattr(env, name) for name in COUNTERS},
            "gripper": robot.gripper.current_action,
            "controller": {name: value for name, value in vars(robot.controller).items() if _plain(value)},
            "robot": {name: value for name, value in vars(robot).items() if isinstance(value, numpy.ndarray)},
            "buffers": {name: vars(value) for name, value in vars(robot).items() if type(value).__name__ in BUFFERS},
            "observed": {name: {part: getattr(each, part) for part in OBSERVED} for name, each in env._observables.items()},
        }
    )


def put(env: Any, state: dict[str, Any]) -> None:
    """The environment must have been built from the same task."""
    import mujoco

    state = copy.deepcopy(state)
    model, data, robot = env.sim.model._model, env.sim.data._data, env.robots[0]
    for name, value in state["places"].items():
        getattr(model, name)[:] = value
    mujoco.mj_setState(model, data, state["physics"], mujoco.mjtState.mjSTATE_INTEGRATION)
    warm = data.qacc_warmstart.copy()  # what follows would move the solver's start
    mujoco.mj_forward(model, data)
    data.qacc_warmstart[:] = warm
    vars(env).update(state["counters"])
    robot.gripper.current_action = state["gripper"]
    vars(robot.controller).update(state["controller"])
    vars(robot).update(state["robot"])
    for name, held in state["buffers"].items():
        vars(getattr(robot, name)).update(held)
    for name, parts in state["observed"].items():
        vars(env._observables[name]).update(parts)
    env._obs_cache = {}


def _plain(value: Any) -> bool:
    """Whether a value is numbers, words, or lists of them: not the simulation, which the controller also holds."""
    import numpy

    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (numpy.ndarray, numpy.generic, float, int, bool, str))

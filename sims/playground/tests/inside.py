"""The worker's batch with a task that is known to the last bit, and what Playground refuses; run by the interpreter that has it.

python inside.py SEEN.json: a point on a line, whose reward is its place, which has come to an end beyond 3, and whose numbers are
not finite from 100 on.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import jax
import mujoco
import numpy
from flax import struct
from jax import numpy as jnp
from ml_collections import config_dict
from mujoco_playground import dm_control_suite
from mujoco_playground._src.mjx_env import State

PLACE = Path(__file__).parents[1] / "mmrl_playground" / "batch.py"
spec = importlib.util.spec_from_file_location("batch", PLACE)
batch = sys.modules["batch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(batch)


@struct.dataclass
class Data:
    qpos: jax.Array
    qvel: jax.Array


class Line:
    """A step moves by the action; observations have a part that only a critic may see."""

    action_size = 1

    def __init__(self, config, config_overrides):
        config.update(config_overrides)
        self._config = config
        self.mj_model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><camera name='eye'/></worldbody></mujoco>")

    def reset(self, rng):
        return self._state(jnp.zeros(1) + rng[1], {"steps": jnp.zeros((), int)})

    def step(self, state, action):
        return self._state(state.data.qpos + action, {"steps": state.info["steps"] + 1})

    def _state(self, place, info):
        place = jnp.where(place >= 100, jnp.nan, place)
        obs = {"state": jnp.append(place, info["steps"]), "privileged_state": place * 2}
        return State(Data(place, place * 0), obs, place[0], (place[0] > 3).astype(float), {}, info)


def config():
    return config_dict.create(action_repeat=2, episode_length=11, impl="jax")


def refused(*given):
    try:
        batch.packages.load(*given)
    except batch.packages.Refused as error:
        return str(error)


dm_control_suite.register_environment("Line", Line, config)
seen = {
    "unknown": refused("CartpolBalance", "jax", {}, None),
    "far": refused("xyz", "jax", {}, None),
    "key": refused("CartpoleBalance", "jax", {"no_such": 1}, None),
    "impl": refused("CartpoleBalance", "jax", {"impl": "warp"}, None),
    "robot": refused("PandaPickCube", "jax", {}, None),
    "folder": refused("Go1Getup", "jax", {}, "/no/such"),
    "empty": refused("Go1Getup", "jax", {}, str(PLACE.parent)),
}
os.environ[batch.packages.MENAGERIE] = "/nowhere"
seen["variable"] = refused("Go1Getup", "jax", {}, None)

played = batch.Batch("Line", 3, "jax", "auto", {}, None, 4.0, None, None, 2)
played.reset({0: 0, 1: 1, 2: 2**33 + 98}, None)
numbers = numpy.array([1.0, 1.0, 0.5, 1, 1, 1], numpy.float32)
rows = [played.step(numbers) for _ in range(2)]
idle = played.step(numpy.array([1.0, 1.0, 1.0, 0, 1, 0], numpy.float32))
state = played.snapshot([1, 2])
played.restore(([2, 0], state))
after = played.step(numpy.array([1.0, 0.5, -1.0, 1, 0, 1], numpy.float32))
seen["facts"] = played.facts
for name, each in {"first": rows[0], "second": rows[1], "idle": idle, "after": after}.items():
    seen[name] = {key: value.tolist() for key, value in each.items()}
try:
    played.restore(([0], state))
except batch.packages.Refused as error:
    seen["misfit"] = str(error)
try:
    batch.Batch("Line", 1, "jax", "auto", {}, None, None, None, "side", None)
except batch.packages.Refused as error:
    seen["camera"] = str(error)
Path(sys.argv[1]).write_text(json.dumps(seen))

"""Writes two demonstrations of the scripted expert of Lift as robomimic's data sets are written (robomimic,
docs/datasets/overview.md and scripts/dataset_states_to_obs.py): run by the interpreter that has robosuite.

python recorded.py FILE.hdf5
"""

import importlib.util
import json
import sys
from pathlib import Path

import h5py
import numpy
import robosuite
from robosuite.controllers import load_composite_controller_config

KEYS = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object-state")

spec = importlib.util.spec_from_file_location("experts", Path(__file__).parents[1] / "mmrl_robosuite" / "experts.py")
experts = sys.modules["experts"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(experts)

kwargs = {
    "robots": ["Panda"],
    "controller_configs": load_composite_controller_config(robot="Panda"),
    "has_renderer": False,
    "has_offscreen_renderer": False,
    "use_camera_obs": False,
    "use_object_obs": True,
    "ignore_done": True,
    "control_freq": 20,
    "reward_shaping": False,
}
env = robosuite.make("Lift", **kwargs)
with h5py.File(sys.argv[1], "w") as file:
    data = file.create_group("data")
    for number in range(2):
        env.rng.bit_generator.state = numpy.random.default_rng(1000 + number).bit_generator.state
        env.reset()
        rows = {"actions": [], "states": [], "rewards": [], "dones": []}
        seen = {name: [] for name in KEYS}
        held = data.create_group(f"demo_{number}")
        held.attrs["model_file"] = env.sim.model.get_xml()
        held.attrs["ep_meta"] = json.dumps(env.get_ep_meta())
        after = 0
        while after < 3:  # some steps of success, as a person's demonstration ends
            action = numpy.array(experts.act(env))
            rows["states"].append(env.sim.get_state().flatten())
            rows["actions"].append(action)
            _, reward, _, _ = env.step(action)
            after += bool(env._check_success())
            rows["rewards"].append(reward)
            rows["dones"].append(after == 3)
        for state in rows["states"]:  # what is observed is extracted afterwards, from the states
            env.sim.set_state_from_flattened(state)
            env.sim.forward()
            obs = env._get_observations(force_update=True)
            for name in KEYS:
                seen[name].append(obs[name])
        held.attrs["num_samples"] = len(rows["actions"])
        for name, values in rows.items():
            held.create_dataset(name, data=numpy.array(values))
        for name, values in seen.items():
            held.create_dataset(f"obs/{name.removesuffix('-state')}", data=numpy.array(values))
    data.attrs["total"] = sum(each.attrs["num_samples"] for each in data.values())
    data.attrs["env_args"] = json.dumps(
        {"env_name": "Lift", "env_version": robosuite.__version__, "type": 1, "env_kwargs": kwargs}
    )
    file.create_dataset("mask/train", data=numpy.array([b"demo_1"]))

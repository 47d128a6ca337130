"""Plays tasks, and gives what can't be, in one process of the interpreter that has robosuite. Prints JSON.

python inside.py futures TASK...     task -> whether its future comes back: repeated, restored, restored after another episode
python inside.py refused FILE.hdf5   what is given -> the message
"""

import importlib.util
import json
import pickle
import sys
from pathlib import Path

import numpy

HERE = Path(__file__).parents[1] / "mmrl_robosuite"
spec = importlib.util.spec_from_file_location("environment", HERE / "environment.py")
environment = sys.modules["environment"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(environment)
ARM = {"controller": "OSC_POSE", "control": "delta", "control_hz": 20.0, "lite_physics": True}
GIVEN = {"cameras": {}, "size": 16, "state": ["robot0_eef_pos"], "shaped": True, "poses": (2.0,) * 3 + (3.0,) * 3}
GIVEN |= {"demonstrations": None, "filter_key": None, "scripted": False, "robots": ["Panda"], **ARM}


def make(env, **options):
    return environment.Environment(env, **GIVEN | options)


def seen(rows):
    return {name: value.tobytes() for name, value in rows.items()}


def played(made, steps, seed):
    draws = numpy.random.default_rng(seed).uniform(-1, 1, (steps, len(made.units))).astype("float32")
    return [seen(made.step(action)) for action in draws]


def future_comes_back(env):
    """Snapshots travel as bytes, as between processes."""
    two = env.startswith("TwoArm")
    made = make(env, robots=["Panda"] * (1 + two), state=["object", "robot0_joint_vel"])
    begun = [seen(made.reset(3, None)), *played(made, 5, 0)]
    state = pickle.dumps(made.snapshot())
    after = played(made, 8, 1)
    made.restore(pickle.loads(state))
    restored = played(made, 8, 1) == after
    made.reset(5, None)
    played(made, 2, 2)
    made.restore(pickle.loads(state))
    rebuilt = played(made, 8, 1) == after
    return [[seen(made.reset(3, None)), *played(made, 5, 0)] == begun, restored, rebuilt]


def refusals(file):
    import h5py

    folder = Path(file).parent
    (folder / "text.hdf5").write_text("no file of HDF5")
    with h5py.File(folder / "empty.hdf5", "w") as empty:
        empty.create_group("data")
    with h5py.File(file) as whole, h5py.File(folder / "torn.hdf5", "w") as torn, h5py.File(folder / "other.hdf5", "w") as other:
        for each in (torn, other):
            whole.copy("data", each)
        held = torn["data/demo_0"]
        actions = held["actions"][:-1]
        del held["actions"]
        held["actions"] = actions
        states = other["data/demo_0/states"][:, :-1]
        del other["data/demo_0/states"]
        other["data/demo_0/states"] = states
    told = {
        "camera": {"cameras": {"front": "front"}},
        "state": {"state": ["cube"]},
        "robot": {"robots": ["R2D2"]},
        "text": {"demonstrations": str(folder / "text.hdf5")},
        "missing": {"demonstrations": str(folder / "missing.hdf5")},
        "empty": {"demonstrations": str(folder / "empty.hdf5")},
        "torn": {"demonstrations": str(folder / "torn.hdf5")},
        "other": {"demonstrations": str(folder / "other.hdf5")},
        "subset": {"demonstrations": file, "filter_key": "valid"},
        "task": {"env": "Door", "demonstrations": file},
        "expert": {},
    }
    return {name: refused(options) for name, options in told.items()}


def refused(options):
    try:
        made = make(**{"env": "Lift"} | options)
        made.reset(0, None)
        made.expert()
    except environment.Refused as error:
        return str(error)
    return "nothing was refused"


done = refusals(sys.argv[2]) if sys.argv[1] == "refused" else {env: future_comes_back(env) for env in sys.argv[2:]}
print("\n" + json.dumps(done))

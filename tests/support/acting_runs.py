"""What whole runs of tiny policies that act have in common."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import load_file

import runs
from mmrl.config.load import parse_config

PLUGINS = os.pathsep.join([runs.TOY, str(Path(__file__).with_name("dial.py"))])
"""The value of MMRL_PLUGIN_FILES."""
TURN = {"id": "dial/turn", "options": {"n": 2000, "reward": "stages"}}


def acting_config(folder, task, stages, *, policy, **sections):
    """A run file of one task and few environments. sections: in place of those here."""
    data = {
        "name": policy["kind"],
        "runs_dir": str(folder),
        "policy": policy,
        "tasks": [task],
        "stages": stages,
        "simulate": {"num_envs": 8},
        "evaluate": {"num_prompts": 8},
        "record": {"trackers": []},
        "train": {"threads": 1},
    }
    return parse_config({**data, **sections})


def metrics(folder):
    return [r["metrics"] for r in runs.rows(folder) if "metrics" in r]


def weights(folder, step):
    """The weights of a checkpoint, by name."""
    return load_file(folder.path / "checkpoints" / f"step-{step:06d}" / "policy" / "model.safetensors")

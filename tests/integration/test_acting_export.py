"""`mmrl export` of policies that act: a folder in LeRobot's layout, which LeRobot loads from where it lies."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import runs
from mmrl.config.load import parse_config
from mmrl.train.export import export_run
from peer_pythons import LEROBOT, MISSING, assert_same
from smolvla_cases import smolvla
from smolvla_parity import acted, pairs

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
SFT = {"kind": "sft", "split": "demo", "steps": 1, "batch_size": 4, "learning_rate": 3e-3}
LORA = {"rank": 2, "target_modules": ["language"]}
REACH = {"id": "robotics/reach", "options": {"dims": 4, "size": 56, "cameras": ["front", "wrist"], "max_steps": 8}}


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))


def trained(folder, kind, **policy):
    data = {
        "name": kind,
        "runs_dir": str(folder),
        "policy": {
            "kind": kind,
            "model": f"tiny:{kind}:hidden=32,layers=1,chunk=3",
            "options": {"dims": 4, "chunk": 2, "state": 8, "steps": 3, "cameras": ["front", "wrist"]},
            **policy,
        },
        "tasks": [REACH],
        "stages": [SFT],
        "evaluate": {"num_prompts": 0},
        "record": {"trackers": []},
        "train": {"threads": 1},
    }
    return runs.run(parse_config(data)).path


@pytest.mark.parametrize(("kind", "policy"), [("pi0", {}), ("smolvla", {"lora": LORA})])
def test_it_is_in_lerobots_layout(tmp_path, kind, policy):
    """pi0 was saved in transformers' layout by the run, and the SmolVLA's adapters are worked in."""
    run = trained(tmp_path / "runs", kind, **policy)
    made = export_run(run, tmp_path / "out", which="last", merged=True)
    assert made.layout == "lerobot"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["type"] == kind and config["output_features"]["action"]["shape"] == [4]
    assert {"policy_preprocessor.json", "policy_postprocessor.json", "model.safetensors", "run.toml", "README.md"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert not any("lora" in name for name in load_file(tmp_path / "out" / "model.safetensors"))
    assert "lerobot-eval --policy.path=out" in (tmp_path / "out" / "README.md").read_text()
    if kind == "smolvla":
        assert config["vlm_model_name"] == str(tmp_path / "out" / "backbone")


@pytest.mark.slow
@pytest.mark.skipif(not LEROBOT, reason=MISSING)
def test_lerobot_acts_with_it(tmp_path):
    run, out = trained(tmp_path / "runs", "smolvla", lora=LORA), tmp_path / "out"
    export_run(run, out, which="last", merged=True)
    draw = torch.Generator().manual_seed(1)
    seen = {
        "observation.images.front": torch.randint(0, 256, (3, 56, 56, 3), dtype=torch.uint8, generator=draw),
        "observation.images.wrist": torch.randint(0, 256, (3, 56, 56, 3), dtype=torch.uint8, generator=draw),
        "observation.state": torch.randn(3, 8, generator=draw),
        "noise": torch.randn(3, 3, 32, generator=draw),
        "time": torch.rand(3, generator=draw),
    }
    acted(out, seen)
    policy = smolvla(str(out), dims=None, chunk=None, state=None)
    assert_same(pairs(policy, seen, out), pixels=(1e-6, 0.0), loss=(1e-4, 1e-5))


@pytest.mark.slow
@pytest.mark.skipif(not LEROBOT, reason=MISSING)
def test_lerobot_eval_plays_it_in_the_tasks_own_environment(tmp_path):
    run, out = trained(tmp_path / "runs", "smolvla"), tmp_path / "out"
    export_run(run, out, which="last")
    options = json.dumps({**REACH["options"], "max_steps": 4})
    asked = ["--env.discover_packages_path=mmrl_interop.lerobot", "--env.type=mmrl", "--env.task=robotics/reach"]
    asked += [
        f"--env.options={options}",
        f"--policy.path={out}",
        "--policy.device=cpu",
        "--eval.n_episodes=2",
        "--eval.batch_size=2",
    ]
    own = {"MMRL_PLUGINS": "robotics,tabletop,interop", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [LEROBOT, "-m", "lerobot.scripts.lerobot_eval", *asked, f"--output_dir={tmp_path / 'eval'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env={**os.environ, **own}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "eval" / "eval_info.json").read_text())["overall"]["n_episodes"] == 2

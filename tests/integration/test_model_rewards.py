"""Rewards from models in whole runs: what they pay along an episode is learned from, and a run file that can't be is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import runs
from mmrl.api.errors import UserError
from mmrl.config.load import load_config, parse_config
from mmrl.train.resolve import resolve
from mmrl.train.smoke import smoke

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
ROOT = Path(__file__).parents[2]
PLUGIN = '''
from mmrl import Score, VerifierSpec, hookimpl

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="watch/nearer", target="watch:Nearer", model=True, rollout=True, low=-9, high=9, timeout_s=60)]

class Nearer:
    """From the pictures: by how much each call brought the red pointer nearer to the green mark, the first time it is asked."""

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def __call__(self, cases):
        return [self.score(case.rollout.data) for case in cases]

    def score(self, track):
        shown = track.images["front"][:, 0].float()
        place = lambda row: (row * range_of(row)).sum(-1) / row.sum(-1).clamp_min(1)
        gap = (place(shown[..., 0]) - place(shown[..., 1])).abs() / shown.shape[1]
        steps = self.scale * (gap[:-1] - gap[1:])
        return Score(float(steps.sum()), steps=tuple(steps.tolist()))

def range_of(row):
    import torch
    return torch.arange(row.shape[-1]).float()
'''


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("watch") / "watch.py"
    found.write_text(PLUGIN)
    return found


@pytest.fixture(autouse=True)
def loaded(path, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL, str(path)]))
    monkeypatch.syspath_prepend(str(path.parent))


def config(folder, verifiers=None, **sections):
    data = {
        "name": "dial",
        "runs_dir": str(folder),
        "policy": {"kind": "robotics/small", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [64, 64]}},
        "tasks": [{"id": "dial/turn", "options": {"n": 2000}, "verifiers": {"dial/success": 0.0, "watch/nearer": 3.0}}],
        "verifiers": verifiers or {},
        "stages": [
            {"kind": "rl", "algorithm": "ppo", "steps": 20, "prompts_per_step": 96, "group_size": 1, "ratio": "action"}
            | {"credit": "action", "minibatches": 4, "epochs": 2, "learning_rate": 1e-3, "settings": {"gamma": 0.9}}
            | {"critic": {"learning_rate": 3e-3, "hidden_sizes": [64]}}
        ],
        "simulate": {"num_envs": 48},
        "evaluate": {"num_prompts": 200},
        "record": {"trackers": [], "rollouts": 4},
        "train": {"threads": 1},
    }
    return parse_config({**data, **sections})


@pytest.mark.slow
def test_a_policy_learns_from_what_a_model_pays_for_each_call(tmp_path):
    """Nothing else is paid; the figure is the simulator's own success."""
    folder = runs.run(config(tmp_path))
    summary = json.loads((folder.path / "summary.json").read_text())
    found = {name: summary[name]["dial/turn"]["value"] for name in ("before", "last")}
    assert found["before"] < 0.45 and found["last"] > 0.75, found
    steps = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert all(m["judge/failed_share"] == 0 for m in steps)
    rows = [json.loads(line) for line in (folder.path / "rollouts" / "step-000010.jsonl").read_text().splitlines()]
    for row in rows:
        score = row["score"]
        assert score["value"] == pytest.approx(sum(score["steps"])) == pytest.approx(3 * score["parts"]["watch/nearer"])


@pytest.mark.slow
def test_options_of_a_verifier_come_from_the_run_file(tmp_path):
    one, two = (
        runs.run(
            config(
                tmp_path / str(scale),
                {"watch/nearer": {"scale": scale}},
                stages=[{**config(tmp_path).stages[0].model_dump(exclude_unset=True), "steps": 1}],
                evaluate={"num_prompts": 0},
                record={"trackers": [], "rollouts": 4, "rollouts_every": 1},
            )
        )
        for scale in (1.0, 2.0)
    )
    values = [
        [json.loads(line)["score"]["value"] for line in (f.path / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
        for f in (one, two)
    ]
    assert values[1] == pytest.approx([2 * v for v in values[0]], abs=1e-5) and any(values[0])


@pytest.mark.parametrize(
    ("verifiers", "said"),
    [
        ({"watch/nearest": {}}, "no verifier 'watch/nearest'. Did you mean 'watch/nearer'?"),
        ({"toy/exact": {}}, "verifiers.toy/exact has options, but no task of this run uses it: use dial/success, watch/nearer"),
        ({"watch/nearer": {"scales": 2.0}}, "verifier 'watch/nearer' has no option 'scales'. Did you mean 'scale'?"),
        ({"dial/success": {"strict": True}}, "verifier 'dial/success' has no option 'strict'"),
    ],
)
def test_options_that_no_verifier_has(tmp_path, verifiers, said):
    with pytest.raises(UserError) as error:
        resolve(config(tmp_path, verifiers))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_options_can_be_set_from_outside(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "x"\npolicy = {kind = "robotics/small", model = "cnn", options = {dims = 4, size = 32}}\n'
        'stages = [{kind = "rl", algorithm = "ppo", steps = 1, group_size = 1}]\nevaluate = {num_prompts = 0}\n'
        '[[tasks]]\nid = "robotics/pick"\noptions = {dims = 4, size = 32, reward = "none"}\n'
        'verifiers = {"robotics/success" = 0.0, "robotics/judge" = 1.0}\n'
    )

    def refused(*overrides):
        with pytest.raises(UserError) as error:
            resolve(load_config(path, overrides))
        assert "\n" not in str(error.value)
        return str(error.value)

    assert """needs the option 'model': give model = ... under [verifiers."robotics/judge"] in a run file""" in refused()
    tiny = "verifiers.robotics/judge.model=tiny"
    resolve(load_config(path, [tiny, "verifiers.robotics/judge.camera=front"]))
    assert "camera = 'behind' is not a camera of task 'robotics/pick': choose one of front, wrist, top" in refused(
        tiny, "verifiers.robotics/judge.camera=behind"
    )
    assert "is not a folder" in refused("verifiers.robotics/judge.model=./nowhere")


def test_smoke_takes_small_models():
    full = load_config(ROOT / "configs" / "recipes" / "vlac.toml")
    small = smoke(full)
    assert full.verifiers["robotics/progress"] == {"model": "Qwen/Qwen2.5-VL-3B-Instruct", "every": 2}
    assert small.verifiers["robotics/progress"] == {"model": "tiny", "every": 2}
    assert small.verifiers["robotics/judge"] == {"model": "tiny"}

"""Imitation of a folder of demonstrations, through `mmrl train`: as of the expert's own episodes, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.train.resolve import resolve
from mmrl.train.start import evaluate_only

MOMENTS = str(Path(__file__).parents[1] / "support" / "moments.py")
TABLE = {"task": "reach", "dims": 4, "size": 36}
POLICY = {"kind": "robotics/small", "model": "cnn", "options": {"dims": 4, "size": 36, "hidden": [16], "chunk": 2}}
SFT = {"kind": "sft", "split": "demo", "steps": 6, "batch_size": 5, "learning_rate": 1e-3}
COUNT = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders with the same episodes: as the simulator takes their actions, and in metres."""
    from mmrl_robotics import record

    from mmrl.api.services import expert_episodes

    root = tmp_path_factory.mktemp("demos")
    episodes = expert_episodes("robotics/reach", {"dims": 4, "size": 36}, COUNT)
    shown = [demonstration for demonstration, _ in episodes]
    record.write(root / "own", shown, fps=5.0)
    record.write(root / "metres", [record.physical(d, episodes.action) for d in shown], fps=5.0)
    episodes.close()
    return root, [len(d.actions_MA) for d in shown]


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([MOMENTS]))


def config(folder, task, options, policy=POLICY, **sections):
    data = {
        "name": "imitation",
        "runs_dir": str(folder),
        "policy": policy,
        "tasks": [{"id": task, "name": "table", "options": options}],
        "stages": [SFT],
        "simulate": {"num_envs": 4},
        "evaluate": {"num_prompts": 8},
        "record": {"trackers": []},
        "train": {"threads": 1},
    }
    return parse_config({**data, **sections})


def weights(folder):
    (path,) = sorted(folder.path.glob("checkpoints/*/policy/*.safetensors"))[-1:]
    return load_file(path)


def same(a, b):
    mine, other = weights(a), weights(b)
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def data_set(root, **options):
    return {"folder": str(root / "own"), "simulator": "tabletop/table", **TABLE, **options}


def test_a_folder_is_imitated_as_the_expert_is(tmp_path, made, monkeypatch):
    import moments

    root, lengths = made
    monkeypatch.setattr(moments, "LENGTHS", lengths)
    of_folder = runs.run(config(tmp_path / "folder", "robotics/demos", data_set(root)))
    of_expert = runs.run(config(tmp_path / "expert", "moments/expert", {"simulator": "tabletop/table", **TABLE}))
    assert same(of_folder, of_expert)
    assert runs.trajectory(of_folder) == runs.trajectory(of_expert), "losses and evaluations too"
    bounded = config(tmp_path / "bounded", "robotics/demos", data_set(root, cache_mb=0), evaluate={"num_prompts": 0})
    assert same(runs.run(bounded), of_folder)
    alone = config(tmp_path / "alone", "robotics/demos", {"folder": str(root / "own")}, evaluate={"num_prompts": 0})
    assert same(runs.run(alone), of_folder), "no simulator is needed to imitate"


@pytest.mark.slow
def test_episodes_in_metres_are_imitated_by_a_policy_with_statistics(tmp_path, made):
    """And with the simulator's numbers it learns the same, up to rounding: it turns them into metres."""
    root, _ = made
    stats = json.loads((root / "metres" / "meta" / "stats.json").read_text())
    low, high = stats["action"]["min"], stats["action"]["max"]
    held = {"min": low, "max": [b if b > a else a + 1 for a, b in zip(low, high, strict=True)]}
    (tmp_path / "stats.json").write_text(json.dumps({"action": {**held, "mask": [True, True, True, False]}}))
    own = {"statistics": str(tmp_path / "stats.json"), "gripper": "close-positive"}
    policy = {**POLICY, "options": {**POLICY["options"], **own}}
    metres = {**data_set(root), "folder": str(root / "metres"), "units": "physical"}
    a = runs.run(config(tmp_path / "a", "robotics/demos", metres, policy))
    b = runs.run(config(tmp_path / "b", "robotics/demos", data_set(root), policy, evaluate={"num_prompts": 0}))
    mine, other = weights(a), weights(b)
    for name in mine:
        torch.testing.assert_close(mine[name], other[name], atol=1e-4, rtol=1e-4)
    plain = config(tmp_path / "c", "robotics/demos", metres, evaluate={"num_prompts": 0})
    with pytest.raises(UserError, match=r"the policy has no statistics: set policy.options.statistics"):
        runs.run(plain)


def test_a_broken_episode_is_left_out_and_counted(tmp_path, made):
    folder = tmp_path / "broken"
    shutil.copytree(made[0] / "own", folder)
    path = folder / "data/chunk-000/file-000.parquet"
    whole = parquet.read_table(path)
    parquet.write_table(whole.filter([index.as_py() != 2 for index in whole["episode_index"]]), path)
    options = {"folder": str(folder)}
    short = {**SFT, "steps": 2, "batch_size": 3}
    done = runs.run(config(tmp_path / "a", "robotics/demos", options, stages=[short], evaluate={"num_prompts": 0}, seed=1))
    told = [json.loads(line) for line in (done.path / "errors.jsonl").read_text().splitlines()]
    assert told and all("file-000.parquet: episode 2 has 0 frames, and meta/episodes says" in str(row) for row in told)
    for path in folder.glob("data/**/*.parquet"):
        path.unlink()
    with pytest.raises(UserError, match=r"prompts are broken so far, .*does not exist: download the whole data set"):
        runs.run(config(tmp_path / "b", "robotics/demos", options, evaluate={"num_prompts": 0}))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {},
            r"task 'table' has demonstrations but no simulator, which evaluation needs: .* set "
            r"evaluate.num_prompts = 0",
        ),
        (
            {
                "stages": [{"kind": "rl", "algorithm": "trajectory-grpo", "steps": 1, "group_size": 4}],
                "evaluate": {"num_prompts": 0},
            },
            r'stages.0: task \'table\' has demonstrations but no simulator, which kind = "rl" needs: set the task\'s option',
        ),
        (
            {
                "stages": [{"kind": "distill", "teacher": "expert", "divergence": "hard", "steps": 1}],
                "evaluate": {"num_prompts": 0},
            },
            r'stages.0: task \'table\' has demonstrations but no simulator, which kind = "distill" needs',
        ),
        (
            {"stages": [{**SFT, "split": "train"}], "evaluate": {"num_prompts": 0}},
            r"task 'table' has no split 'train': choose one of demo",
        ),
    ],
)
def test_without_a_simulator_nothing_is_played(tmp_path, made, sections, message):
    with pytest.raises(UserError, match=message):
        resolve(config(tmp_path, "robotics/demos", {"folder": str(made[0] / "own")}, **sections))


def test_what_imitated_a_folder_alone_is_evaluated_in_a_simulator_later(tmp_path, made):
    root, _ = made
    done = runs.run(config(tmp_path, "robotics/demos", {"folder": str(root / "own")}, evaluate={"num_prompts": 0}))
    played = config(tmp_path, "robotics/demos", data_set(root))
    (figure,) = evaluate_only(played, done.path, "last")
    assert figure.n == 8 and 0 <= figure.value <= 1

"""A pilot's evaluation, and a stage that trains on what it selects."""

import json

import pytest

import runs
from mmrl.api.errors import UserError
from mmrl.train.remarks import remarks
from mmrl.train.resolve import resolve

PILOT = {"split": "train", "num_prompts": 6, "num_samples": 2, "temperature": 1.0}


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)


@pytest.fixture
def pilot(tmp_path):
    """What an evaluation of six of the sixteen prompts wrote, before the first step."""
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 1, "group_size": 2}
    folder = runs.run(runs.toy_config(tmp_path, "pilot", stages=[stage], evaluate=PILOT))
    return folder.path / "evaluations" / "step-000000.jsonl"


def config(folder, **select):
    stage = {"kind": "rl", "steps": 3, "prompts_per_step": 2, "group_size": 2, "select": select}
    return runs.toy_config(folder, "selected", stages=[stage])


def test_a_stage_trains_on_what_a_pilot_selects(tmp_path, pilot):
    asked = {row["id"] for row in map(json.loads, pilot.read_text().splitlines())}
    folder = runs.run(config(tmp_path, path=str(pilot), rule="all", max_prompts=3))
    texts = [file.read_text() for file in (folder.path / "rollouts").glob("step-*.jsonl")]
    drawn = [json.loads(line)["prompt_id"] for text in texts for line in text.splitlines()]
    assert len(asked) == 6 and {*drawn} < asked and len({*drawn}) == 3, drawn


def test_it_is_told_that_fewer_are_left(tmp_path, pilot):
    many = config(tmp_path, path=str(pilot), rule="all", max_prompts=9)
    few = "stages.0.select.max_prompts = 9, but only 6 prompts of task 'toy/colour' are left: all of them are used"
    assert few in remarks(resolve(many))
    assert not [
        note for note in remarks(resolve(config(tmp_path, path=str(pilot), rule="all", max_prompts=6))) if "select" in note
    ]


def test_a_selection_that_leaves_nothing_is_refused_before_anything_is_loaded(tmp_path, pilot):
    for select, why in (
        ({"path": str(pilot), "rule": "all", "above": 5.0}, "select leaves none of the 6 prompts of task 'toy/colour'"),
        ({"path": str(tmp_path / "no.jsonl")}, "no.jsonl does not exist"),
        ({"path": str(pilot.parent)}, "is no .jsonl"),
    ):
        with pytest.raises(UserError, match=why):
            resolve(config(tmp_path, **select))
    rows = [row | {"id": row["id"] + "!"} for row in map(json.loads, pilot.read_text().splitlines())]
    pilot.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="has 6 prompts that task 'toy/colour' doesn't have"):
        resolve(config(tmp_path, path=str(pilot), rule="all", max_prompts=6))

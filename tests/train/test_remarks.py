"""What a run, and `--dry-run`, says beforehand of settings that are most likely not intended."""

import pytest

import runs
from mmrl.train.remarks import few_drawn
from mmrl.train.resolve import resolve


@pytest.mark.parametrize(
    ("asked", "weights", "told"),
    [
        (16, [1.0], []),
        (17, [1.0], [", but task 'a' has 16 prompts in split 'train'"]),
        (64, [1.0, 3.0], [", about 48 of them of task 'b', which has 16 prompts in split 'train'"]),
        (17, [1.0, 0.0], [", but task 'a' has 16 prompts in split 'train'"]),
    ],
)
def test_prompts_that_come_more_than_once_in_a_step(tmp_path, monkeypatch, asked, weights, told):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    tasks = [{"id": "toy/colour", "name": name, "weight": weight} for name, weight in zip("ab", weights, strict=False)]
    stages = [
        {"kind": "sft", "steps": 1, "batch_size": 99},
        {"kind": "rl", "steps": 1, "prompts_per_step": asked, "group_size": 2},
    ]
    found = few_drawn(resolve(runs.toy_config(tmp_path, tasks=tasks, stages=stages)))
    assert found == [f"stages.1.prompts_per_step = {asked}{one}: some are taken more than once in a step" for one in told]

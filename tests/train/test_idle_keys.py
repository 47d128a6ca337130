"""Notes about keys that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from mmrl.config.load import parse_config
from mmrl.config.sections import EvaluateConfig, RlStage
from mmrl.train.idle_keys import SWITCHES, idle_keys


def said(stage: dict[str, Any], evaluate: dict[str, Any] | None = None) -> list[str]:
    stages = [{"kind": "sft", "steps": 1}, {"kind": "rl", "steps": 9, **stage}]
    data = {"name": "x", "policy": {"model": "m"}, "tasks": [{"id": "a/b"}], "stages": stages, "evaluate": evaluate or {}}
    return idle_keys(parse_config(data))


@pytest.mark.parametrize(
    ("stage", "switch", "state"),
    [
        ({"importance_sampling_cap": 3.0}, {"importance_sampling": "mask"}, 'with importance_sampling = "off"'),
        ({"importance_sampling_floor": 0.5}, {"importance_sampling": "truncate"}, 'with importance_sampling = "off"'),
        ({"kl_horizon": 3.0}, {"kl_target": 0.1}, "without kl_target"),
        ({"overlong_penalty": 2.0}, {"overlong_buffer": 0.5}, "with overlong_buffer = 0.0"),
        ({"hint_shares": [0.1]}, {"hints": "ghpo"}, 'with hints = "none"'),
        ({"ground_truth_without": ["a/b"]}, {"ground_truth": "always"}, 'with ground_truth = "never"'),
        ({"replay_buffer_size": 9}, {"replay_share": 0.5}, "with replay_share = 0.0"),
        ({"min_lr_ratio": 0.1}, {"schedule": "linear"}, 'with schedule = "constant"'),
    ],
)
def test_a_key_of_what_is_off_is_named_with_its_switch(stage, switch, state):
    (key,), (other,) = stage, switch
    assert said(stage) == [f"stages.1.{key} has no effect {state}: set that, or leave {key} out"]
    assert said({**stage, **switch}) == [] and said(switch) == [] and SWITCHES[key] == other


def test_keys_of_evaluations_have_switches_too():
    assert said({}, {"sparse_agreement": 3, "steering": {"ema": 0.5}}) == [
        "evaluate.sparse_agreement has no effect with sparse_frames = []: set that, or leave sparse_agreement out",
        "evaluate.steering has no effect with steer = false: set that, or leave steering out",
    ]
    assert said({}, {"sparse_agreement": 3, "steering": {"ema": 0.5}, "sparse_frames": [4, 8], "steer": True}) == []


def test_a_warm_up_that_outlasts_its_stage_is_told():
    (told,) = said({"warmup_steps": 10})
    assert told.startswith("stages.1.warmup_steps = 10 is above steps = 9, so the learning rate never reaches learning_rate")
    assert said({"warmup_steps": 9}) == []


def test_both_keys_of_a_pair_are_in_one_section():
    sections = [section.model_fields.keys() for section in (RlStage, EvaluateConfig)]
    assert all(any({key, switch} <= fields for fields in sections) for key, switch in SWITCHES.items())

"""Every bundled recipe has a plan, or is refused in a line that says what is missing here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.api.errors import UserError
from mmrl.config.load import load_config
from mmrl.train.plan import predict
from mmrl.train.plan.machines import GPUS
from mmrl.train.resolve import with_algorithm_defaults

RECIPES = {path.stem: path for path in sorted((Path(__file__).parents[2] / "configs" / "recipes").glob("*.toml"))}
ROOM = replace(GPUS["h200"], memory=10**15)
"""No settings are looked for with which a run fits."""
REFUSED = {
    **dict.fromkeys(
        ("dppo", "dppo-robomimic"), r"^policy\.model: 'lerobot/diffusion_pusht' has no config\.json that can be read: "
    ),
    "pi-rl": r"^policy\.model: 'lerobot/pi0_base' has no config\.json that can be read: give a folder or hub name of a pi0",
    "dsrl": r"^policy\.options\.base\.model: 'lerobot/pi0_base' has no config\.json that can be read: give a folder or hub",
    "dsrl-na": r"^policy\.options\.base\.model: 'lerobot/diffusion_pusht' has no config\.json that can be read: ",
    "mpo": r"^policy\.model: 'OpenGVLab/.*': its config can't be fetched from the hub",
    "pivot": r"^policy\.model: 'llava-hf/.*': its config can't be fetched from the hub",
    "r1-aqa": r"^policy\.model: 'Qwen/Qwen2-Audio-7B-Instruct': its config can't be fetched from the hub",
}
"""Recipes whose model isn't known without a network."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_it_has_a_plan_or_a_reason(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    try:
        plan = predict(with_algorithm_defaults(load_config(RECIPES[name])), ROOM, online=False)
    except UserError as error:
        assert name in REFUSED and re.match(REFUSED[name], str(error)) and "\n" not in str(error), str(error)
        return
    assert name not in REFUSED and plan.fits
    for stage in plan.stages:
        assert stage.step_s > 0 and stage.peak >= stage.certain > 0
        assert stage.work.micro and sum(n * size for n, size in stage.work.trained) > 0
    json.dumps(plan.as_json())


@pytest.mark.parametrize(
    ("name", "sampled", "trained"),
    [
        ("noisyrollout", 512 * 12, 512 * 12),  # half of each group of 12 is sampled from noisy images
        ("co-reward", 2 * 128 * 8, 2 * 128 * 8),  # of each prompt and of its rephrased form
        ("ttrv", 4 * 32, 4 * 16),  # half of them only vote
        ("video-r1", 8 * 12, 8 * 8),  # half as many with shuffled frames
        ("visurf", 16 * 8, 16 * 9),  # and the gold completion
        ("visplay", 512 * 8 + 512 * 8 * 10, 512 * 8 + 512 * 10),  # ten answers to each question, and to one that fits
        ("spark", 64 * 8 * 2, 64 * 8 * 2),  # judgements of a half, and reflections on another
    ],
)
def test_what_rules_add_is_planned(name, sampled, trained):
    work = predict(with_algorithm_defaults(load_config(RECIPES[name])), ROOM, online=False).stages[-1].work
    assert (work.rollouts, sum(n * size for n, size in work.trained)) == (sampled, trained)
    assert sum(m.targets for m in work.micro.elements()) == trained * work.completion

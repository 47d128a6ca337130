"""pi0 and pi0.5 against LeRobot's own classes, in both directions: what one saves, the other loads and acts with alike."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing

from mmrl.api.simulators.types import Observation
from mmrl.policies.acting.saved_policy import saved_options
from mmrl.policies.vlm.tiny.tokens import make_tokenizer
from pi0_cases import moved, pi0

LEROBOT = os.environ.get("MMRL_LEROBOT_PYTHON", "")
SCRIPT = Path(__file__).parents[1] / "support" / "pi_of_lerobot.py"
STATISTICS = {
    "observation.state": {
        **{"mean": [0.1, -0.2, 0.0, 0.3, 1.0, 0.3], "std": [1.5, 0.7, 1.0, 0.2, 1.1, 0.0]},
        **{"min": [-3.0, -2.5, -3.5, -1.0, -2.0, 0.3], "max": [3.0, 2.0, 3.5, 1.0, 2.0, 0.3]},
        **{"q01": [-2.0, -1.5, -2.5, -0.5, -1.0, 0.3], "q99": [2.0, 1.0, 2.5, 0.5, 1.0, 0.3]},
    },
    "action": {
        **{"mean": [0.1, 0.2, 0.3], "std": [1.5, 1.0, 2.0], "min": [-1.5, -2.5, -3.5], "max": [2.5, 3.5, 4.5]},
        **{"q01": [-1.0, -2.0, -3.0], "q99": [2.0, 3.0, 4.0]},
    },
}
CASES = [
    ("pi0", "MEAN_STD", "MEAN_STD"),
    ("pi0", "MIN_MAX", "QUANTILES"),
    ("pi05", "QUANTILES", "QUANTILES"),
    ("pi05", "MEAN_STD", "IDENTITY"),
]


class Noise:
    """The randomness of calls whose first noise is given. No other is drawn at temperature 0."""

    def __init__(self, first):
        self.first, self.calls_n = first, torch.zeros(len(first), dtype=torch.int64)

    def normal(self, place, *shape):
        return self.first if place == 0 else torch.zeros(len(self.first), *shape)


def shown():
    draw = torch.Generator().manual_seed(4)
    images = {
        name: torch.randint(0, 256, (3, high, 64, 3), dtype=torch.uint8, generator=draw)
        for name, high in (("front", 64), ("wrist", 40))
    }
    state = torch.randn(3, 6, generator=draw)
    state[:, 5] = 0.3
    return Observation(images=images, state=state, instructions=["pick up the red cube", "push it", "x"])


def prepare(folder, kind, modes):
    """What the script reads, and a tokenizer that puts a token at a text's beginning by itself, as PaliGemma's does."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "<|im_start|>"
    first = [(tokenizer.bos_token, tokenizer.bos_token_id)]
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=f"{tokenizer.bos_token} $A", special_tokens=first)
    tokenizer.save_pretrained(folder)
    seen = shown()
    inputs = {f"observation.images.{name}": image.permute(0, 3, 1, 2) / 255 for name, image in seen.images.items()}
    inputs |= {"observation.state": seen.state, "noise": torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(5))}
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, folder / "inputs.safetensors")
    cameras = [f"observation.images.{name}" for name in seen.images]
    asked = {"statistics": STATISTICS, "cameras": cameras, "state": 6, "dims": 3, "steps": 4, "tasks": seen.instructions}
    asked |= {"tokens": 90, "modes": {"VISUAL": "IDENTITY", "STATE": modes[0], "ACTION": modes[1]}}
    (folder / "asked.json").write_text(json.dumps(asked))


def run(what, kind, folder):
    env = {**os.environ, "PYTHONPATH": os.environ.get("MMRL_LEROBOT_PATH", ""), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([LEROBOT, SCRIPT, what, kind, folder], timeout=300, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(folder / "computed.safetensors")


def acted(policy, folder):
    """(normalised actions, actions in the data's units)."""
    seen, noise = shown(), load_file(folder / "inputs.safetensors")["noise"]
    _, choices, *_ = policy.choose(seen, Noise(noise), 0.0)
    found = choices[:, -1, :, :3]
    return found, policy.statistics.action.unnormalize(found)


def same(policy, folder, computed):
    ids = [row[32:] for row in policy._rows(shown(), 2)]
    assert all(row == theirs[: len(row)] for row, theirs in zip(ids, computed["tokens"].tolist(), strict=True))
    state = policy.normalised_state(shown(), 6)
    torch.testing.assert_close(state, computed["state"], atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        normalised, actions = acted(policy, folder)
    torch.testing.assert_close(normalised, computed["normalised"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(actions, computed["actions"], atol=2e-5, rtol=1e-5)
    assert normalised.std(0).min() > 1e-2, "the actions of calls differ"


@pytest.mark.skipif(not LEROBOT, reason="MMRL_LEROBOT_PYTHON names no Python with lerobot 0.6.1 and its extra pi")
@pytest.mark.parametrize(("kind", "state", "action"), CASES)
def test_lerobot_acts_the_same(kind, state, action, tmp_path):
    prepare(tmp_path, kind, (state, action))
    computed = run("save", kind, tmp_path)
    policy = pi0(str(tmp_path), kind=kind, steps=4)
    same(policy, tmp_path, computed)
    moved(policy)
    back = tmp_path / "back"
    prepare(back, kind, (state, action))
    policy.save(back)
    prepare(back, kind, (state, action))  # the tokenizer that this test gave
    again = run("act", kind, back)
    assert (again["normalised"] - computed["normalised"]).abs().max() > 1e-2, "the weights are others"
    same(policy, back, again)
    options = {name: value for name, value in saved_options(back).items() if name != "kind"}
    same(pi0(str(back), kind=kind, **options), back, again)

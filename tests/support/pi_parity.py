"""pi0 and pi0.5 against LeRobot's own classes, in both directions: what one saves, the other loads and acts with alike."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing

from mmrl.api.simulators.types import Observation
from mmrl.policies.acting.saved_policy import saved_options
from mmrl.policies.vlm.tiny.tokens import make_tokenizer
from peer_pythons import Pairs, lerobot
from pi0_cases import moved, pi0

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
CASES = {
    "pi0": ("MEAN_STD", "MEAN_STD"),
    "pi0-ranges": ("MIN_MAX", "QUANTILES"),
    "pi05": ("QUANTILES", "QUANTILES"),
    "pi05-physical": ("MEAN_STD", "IDENTITY"),
}
"""How LeRobot normalises states and actions."""


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


def prepare(folder, modes, tokenizer=None, more=None):
    """What the script reads, and a tokenizer that puts a token at a text's beginning by itself, as PaliGemma's does. more:
    tensors for the script."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or make_tokenizer()
    tokenizer.bos_token = "<|im_start|>"
    first = [(tokenizer.bos_token, tokenizer.bos_token_id)]
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=f"{tokenizer.bos_token} $A", special_tokens=first)
    tokenizer.save_pretrained(folder)
    seen = shown()
    inputs = {f"observation.images.{name}": image.permute(0, 3, 1, 2) / 255 for name, image in seen.images.items()}
    inputs |= {"observation.state": seen.state, "noise": torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(5))}
    save_file({name: tensor.contiguous() for name, tensor in (inputs | (more or {})).items()}, folder / "inputs.safetensors")
    cameras = [f"observation.images.{name}" for name in seen.images]
    asked = {"statistics": STATISTICS, "cameras": cameras, "state": 6, "dims": 3, "steps": 4, "tasks": seen.instructions}
    asked |= {"tokens": 90, "vocabulary": len(tokenizer), "modes": {"VISUAL": "IDENTITY", "STATE": modes[0], "ACTION": modes[1]}}
    (folder / "asked.json").write_text(json.dumps(asked))


def computed(what, kind, folder):
    lerobot("pi_of_lerobot", "main", what, kind, folder)
    return load_file(folder / "computed.safetensors")


@torch.no_grad()
def pairs(policy, folder, theirs) -> Pairs:
    ids = [row[32:] for row in policy._rows(shown(), 2)]
    assert all(row == theirs_n[: len(row)] for row, theirs_n in zip(ids, theirs["tokens"].tolist(), strict=True))
    noise = load_file(folder / "inputs.safetensors")["noise"]
    _, choices, *_ = policy.choose(shown(), Noise(noise), 0.0)
    normalised = choices[:, -1, :, :3]
    assert normalised.std(0).min() > 1e-2, "the actions of calls differ"
    ours = {"state": policy.normalised_state(shown(), 6), "normalised": normalised}
    ours["actions"] = policy.statistics.action.unnormalize(normalised)
    return {name: (value, theirs[name]) for name, value in ours.items()}


def both_ways(case: str, folder: Path) -> dict[str, Pairs]:
    """By who saved the checkpoint, and of mmrl's loaded again."""
    kind, modes = case.partition("-")[0], CASES[case]
    theirs, back = folder / "theirs", folder / "back"
    prepare(theirs, modes)
    first = computed("save", kind, theirs)
    policy = pi0(str(theirs), kind=kind, steps=4)
    found = {"saved by LeRobot": pairs(policy, theirs, first)}
    moved(policy)
    policy.save(back)
    prepare(back, modes)  # with the tokenizer of these cases
    again = computed("act", kind, back)
    assert (again["normalised"] - first["normalised"]).abs().max() > 1e-2, "the weights are others"
    found["saved by mmrl"] = pairs(policy, back, again)
    options = {name: value for name, value in saved_options(back).items() if name != "kind"}
    return found | {"loaded again": pairs(pi0(str(back), kind=kind, **options), back, again)}

"""ACT against LeRobot's own class: what one saves, the other loads, acts with and learns from alike."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from act_cases import act
from mmrl.api.simulators.types import Observation
from mmrl.policies.act import model
from peer_pythons import Pairs, lerobot

FRONT = "observation.images.front"
BOTH = ["observation.state", "observation.environment_state"]
CASES = {
    "published": {},
    "one camera": {
        "pre_norm": True,
        "feedforward_activation": "gelu",
        "n_decoder_layers": 2,
        "cameras": [FRONT],
        "states": BOTH,
        "rename": {"observation.images.top": FRONT},
        "statistics": {"VISUAL": "MIN_MAX", "STATE": "MIN_MAX", "ACTION": "QUANTILES"},
    },
    "no state": {"cameras": [FRONT], "states": [], "statistics": {"VISUAL": "IDENTITY", "ACTION": "IDENTITY"}},
    "no pictures": {"cameras": [], "states": BOTH, "statistics": {"STATE": "QUANTILE10", "ACTION": "MIN_MAX"}},
    "no VAE": {"cameras": [], "states": BOTH, "use_vae": False},
}


class Given:
    """The numbers with which the latents are drawn."""

    def __init__(self, noise: torch.Tensor) -> None:
        self.noise = noise

    def normal(self, use: int, *shape: int) -> torch.Tensor:
        assert self.noise.shape[1:] == shape
        return self.noise


def observed(seen) -> Observation:
    """LeRobot's observations as mmrl has them."""
    images = {key.rpartition(".")[2]: shown for key, shown in seen.items() if shown.dtype == torch.uint8}
    states = [seen[key] for key in BOTH if key in seen]
    return Observation(images=images, state=torch.cat(states, -1) if states else None, instructions=["x"] * len(seen["noise"]))


def pairs(policy, seen, folder: Path) -> Pairs:
    """Of the actions before and after the statistics, the parts of the loss, and its gradients as shares of the largest one."""
    theirs, shown = load_file(folder / "computed.safetensors"), observed(seen)
    with torch.no_grad():
        predicted, _ = policy.foresee(shown)
    ours = {"normalised": predicted}
    ours["actions"] = policy.statistics.action.unnormalize(predicted) if policy.statistics else predicted
    own, real = policy.in_own_terms(seen["action"], physical=policy.statistics is not None), ~seen["action_is_pad"]
    with patch.object(model, "of_actions", lambda actions, weights: Given(seen["noise"])):
        errors, divergence, _ = policy.imitated(shown, torch.cat([own, real[..., None].float()], -1))
    counts = real.sum(1)
    ours |= {"l1_loss": (errors * counts).sum() / counts.sum(), "kld_loss": divergence.mean()}
    ours["loss"] = ours["l1_loss"] + policy.kl_weight * ours["kld_loss"]
    policy.model.zero_grad()
    ours["loss"].backward()
    named = dict(policy.model["act"].named_parameters())
    gradients = [name for name in theirs if name.startswith("gradient")]
    most = max(theirs[name].abs().max() for name in gradients)
    for name in gradients:
        ours[name], theirs[name] = named[name.removeprefix("gradient of model.")].grad / most, theirs[name] / most
    if "kld_loss" not in theirs:
        assert ours.pop("kld_loss") == 0
    return {name: (value.detach(), theirs[name]) for name, value in ours.items()}


def both_ways(case: str, folder: Path) -> dict[str, Pairs]:
    """By who saved the checkpoint, and of mmrl's loaded again."""
    theirs, ours = folder / "theirs", folder / "ours"
    lerobot("act_of_lerobot", "make", theirs, json.dumps(CASES[case]))
    seen = load_file(theirs / "seen.safetensors")
    policy = act(str(theirs), dropout=0.0)
    found = {"saved by LeRobot": pairs(policy, seen, theirs)}
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    policy.save(ours)
    acted(ours, seen)
    found["saved by mmrl"] = pairs(policy, seen, ours)
    kept = json.loads((theirs / "config.json").read_text())
    assert json.loads((ours / "config.json").read_text()).keys() >= kept.keys(), "no field is lost"
    statistics = policy.statistics.plain() if policy.statistics else ""
    return found | {"loaded again": pairs(act(str(ours), statistics=statistics), seen, ours)}


def acted(folder: Path, seen) -> None:
    save_file(seen, folder / "seen.safetensors")
    lerobot("act_of_lerobot", "act", folder, folder / "seen.safetensors")

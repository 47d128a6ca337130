"""The actions that LeRobot's GR00T policy chooses through its own processors, and checkpoints that it saves. `peer_pythons`
calls these functions by a Python with lerobot 0.6.1, which imports nothing of mmrl.

`seen.pt` in the folder `place` has for each call its images, state, instruction and, where LeRobot can normalise it, a
demonstrated chunk; the size of an action; and statistics of a data set, if any. `chosen.pt` is written there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
from lerobot.policies.groot.configuration_groot import GrootConfig
from lerobot.policies.groot.modeling_groot import GrootPolicy
from lerobot.policies.groot.processor_groot import make_groot_pre_post_processors_from_pretrained


def made(name: str, embodiment: str, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(policy, processors) of a checkpoint in NVIDIA's layout."""
    checkpoint = Path(name)
    # LeRobot looks for the backbone where config.json says, and not beside it
    table = json.loads((checkpoint / "config.json").read_text())
    table |= {"model_name": str(checkpoint / "backbone"), "backbone_model_type": "qwen", "load_bf16": False, "dtype": "float32"}
    (checkpoint / "config.json").write_text(json.dumps(table))
    first = given["calls"][0]
    images = {f"observation.images.{name}": tuple(one.shape[1:]) for name, one in first["images"].items()}
    config = GrootConfig(
        base_model_path=str(checkpoint),
        embodiment_tag=embodiment,
        action_decode_transform="none",
        use_bf16=False,
        device="cpu",
        input_features={
            **{key: PolicyFeature(type=FeatureType.VISUAL, shape=shape) for key, shape in images.items()},
            "observation.state": PolicyFeature(type=FeatureType.STATE, shape=tuple(first["state"].shape[1:])),
        },
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(given["dims"],))},
    )
    encode = {"groot_n1_7_vlm_encode_v1": {"model_name": str(checkpoint / "backbone")}}
    before, after = make_groot_pre_post_processors_from_pretrained(
        config, name, dataset_stats=given.get("statistics"), preprocessor_overrides=encode
    )
    return GrootPolicy(config).eval(), before, after


def acted(given: dict[str, Any], policy: Any, before: Any, after: Any) -> list[dict[str, torch.Tensor]]:
    settings, found = policy._groot_model.config, []
    for i, call in enumerate(given["calls"]):
        batch = {f"observation.images.{name}": one for name, one in call["images"].items()}
        prepared = before({**batch, "observation.state": call["state"], "task": call["instruction"]})
        torch.manual_seed(i)
        start = torch.randn(1, settings.action_horizon, settings.max_action_dim)
        torch.manual_seed(i)
        normalised = policy.predict_action_chunk(prepared)
        kept = {name: prepared[name] for name in ("input_ids", "pixel_values", "image_grid_thw", "state", "embodiment_id")}
        found.append({**kept, "start": start, "normalised": normalised, "actions": after(normalised)})
        if "shown" in call:
            prepared = before({**batch, "observation.state": call["state"], "task": call["instruction"], "action": call["shown"]})
            found[-1]["learned"] = prepared["action"]
    return found


def main(name: str, embodiment: str, place: str) -> None:
    """name: of a checkpoint as NVIDIA publishes it."""
    given = torch.load(Path(place, "seen.pt"), weights_only=True)
    torch.save(acted(given, *made(name, embodiment, given)), Path(place, "chosen.pt"))


def tune(name: str, embodiment: str, place: str, target: str) -> None:
    """Save what fine-tuning such a checkpoint ends with, in the folder `target`, and what it does."""
    given = torch.load(Path(place, "seen.pt"), weights_only=True)
    policy, before, after = made(name, embodiment, given)
    torch.manual_seed(9)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.05 * torch.randn(weight.shape))
    for part in (policy, before, after):
        part.save_pretrained(target)
    torch.save(acted(given, policy, before, after), Path(place, "chosen.pt"))


def act(folder: str, place: str) -> None:
    """Load what LeRobot, or mmrl in its place, has saved."""
    given = torch.load(Path(place, "seen.pt"), weights_only=True)
    config = PreTrainedConfig.from_pretrained(folder)
    policy = GrootPolicy.from_pretrained(folder, config=config).eval()
    torch.save(acted(given, policy, *make_groot_pre_post_processors_from_pretrained(config, folder)), Path(place, "chosen.pt"))

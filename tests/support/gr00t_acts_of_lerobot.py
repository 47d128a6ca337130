"""The actions that LeRobot's GR00T policy chooses through its own processors. `peers.lerobot` calls `main` by a Python with
lerobot 0.6.1, which imports nothing of mmrl."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.groot.configuration_groot import GrootConfig
from lerobot.policies.groot.modeling_groot import GrootPolicy
from lerobot.policies.groot.processor_groot import make_groot_pre_post_processors_from_pretrained


def main(name: str, embodiment: str, place: str) -> None:
    """name: of a checkpoint. `seen.pt` in the folder `place` has for each call its images, state, instruction and, where LeRobot
    can normalise it, a demonstrated chunk; and the size of an action. `chosen.pt` is written there."""
    checkpoint, folder = Path(name), Path(place)
    given = torch.load(folder / "seen.pt", weights_only=True)
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
    policy = GrootPolicy(config).eval()
    encode = {"groot_n1_7_vlm_encode_v1": {"model_name": str(checkpoint / "backbone")}}
    before, after = make_groot_pre_post_processors_from_pretrained(config, str(checkpoint), preprocessor_overrides=encode)
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
    torch.save(found, folder / "chosen.pt")

"""Writes a folder with a small action head of GR00T N1.7, and what LeRobot computes with it. LeRobot's Python runs this file,
which imports nothing of mmrl: `python gr00t_of_lerobot.py FOLDER` with lerobot 0.6.1, its extra groot and diffusers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lerobot.policies.groot.groot_n1_7 import GR00TN17ActionHead, GR00TN17Config
from safetensors.torch import save_file
from transformers.feature_extraction_utils import BatchFeature

WIDTH, READ, HIDDEN, NUMBERS, STATE, AHEAD, KINDS = 24, 16, 20, 6, 5, 7, 3
SHARED = {"dropout": 0.2, "final_dropout": True, "positional_embeddings": None}
CONFIG = {
    **{"backbone_embedding_dim": READ, "input_embedding_dim": WIDTH, "hidden_size": HIDDEN, "max_state_dim": STATE},
    **{"max_action_dim": NUMBERS, "action_horizon": AHEAD, "max_num_embodiments": KINDS, "max_seq_len": 32},
    "diffusion_model_cfg": {
        **{"num_layers": 6, "num_attention_heads": 3, "attention_head_dim": 8, "output_dim": HIDDEN},
        **{"norm_type": "ada_norm", "interleave_self_attention": True, **SHARED},
    },
    "vl_self_attention_cfg": {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 8, **SHARED},
}


def main(folder: Path) -> None:
    torch.set_default_dtype(torch.float64)  # in which rounding hides no difference
    torch.manual_seed(0)
    head = GR00TN17ActionHead(GR00TN17Config(**CONFIG)).eval()
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_(0, 0.3)
    calls, read = 4, 11
    inputs = {
        "features": torch.randn(calls, read, READ),
        "state": torch.randn(calls, 1, STATE),
        "images": torch.rand(calls, read) < 0.5,
        "embodiment": torch.tensor([0, 2, 1, 2]),
        "noise": torch.randn(calls, AHEAD, NUMBERS),
        "times": torch.tensor([0.0, 0.25, 0.6, 0.9995]),
    }
    real = torch.ones(calls, read, dtype=torch.bool)
    seen = BatchFeature(
        {"backbone_features": inputs["features"], "backbone_attention_mask": real, "image_mask": inputs["images"]}
    )
    acting = BatchFeature({"state": inputs["state"], "embodiment_id": inputs["embodiment"]})
    with torch.no_grad():
        encoded = head._encode_features(BatchFeature(dict(seen)), acting)
        buckets = (inputs["times"] * 1000).long()
        tokens = head.action_encoder(inputs["noise"], buckets, inputs["embodiment"])
        tokens = tokens + head.position_embedding(torch.arange(AHEAD))[None]
        hidden = head.model(
            hidden_states=torch.cat([encoded.state_features, tokens], 1),
            encoder_hidden_states=encoded.backbone_features,
            timestep=buckets,
            image_mask=inputs["images"],
            backbone_attention_mask=real,
        )
        velocity = head.action_decoder(hidden, inputs["embodiment"])[:, -AHEAD:]
        torch.manual_seed(1)
        actions = head.get_action(BatchFeature(dict(seen)), acting)["action_pred"]
        torch.manual_seed(1)
        start = torch.randn(calls, AHEAD, NUMBERS)
    outputs = {"velocity": velocity, "start": start, "actions": actions, "read": encoded.backbone_features}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "Gr00tN1d7", **CONFIG}))
    weights = {f"action_head.{name}": weight.clone() for name, weight in head.state_dict().items()}
    save_file({**weights, "backbone.model.lm_head.weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    save_file({name: value.contiguous() for name, value in {**inputs, **outputs}.items()}, folder / "computed.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

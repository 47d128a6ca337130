"""A folder with a small GR00T N1.7, and what LeRobot computes with it. `peer_pythons` calls `main` by a Python with lerobot
0.6.1, which imports nothing of mmrl."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from lerobot.policies.groot.groot_n1_7 import GR00TN17, GR00TN17Config
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


BACKBONE = {
    "model_type": "qwen3_vl",
    **{"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63},
    "text_config": {
        **{"model_type": "qwen3_vl_text", "hidden_size": READ, "intermediate_size": 24, "num_hidden_layers": 5, "vocab_size": 64},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256},
        "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        **{"rope_theta": 10000.0, "rms_norm_eps": 1e-6},
    },
    "vision_config": {
        **{"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": READ, "patch_size": 4},
        **{"num_position_embeddings": 16, "deepstack_visual_indexes": [0], "spatial_merge_size": 2, "temporal_patch_size": 2},
    },
    "tie_word_embeddings": True,
}


def main(place: str) -> None:
    folder = Path(place)
    torch.set_default_dtype(torch.float64)  # in which rounding hides no difference
    torch.manual_seed(0)
    backbone = folder / "backbone"
    backbone.mkdir(parents=True)
    (backbone / "config.json").write_text(json.dumps(BACKBONE))
    config = {**CONFIG, "model_name": str(backbone), "select_layer": 3}
    network = GR00TN17(GR00TN17Config(**config), load_backbone_weights=False).double().eval()
    head = network.action_head
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.3)
    calls = 4
    # two pictures of 4 x 6 patches, so 6 tokens each, with words around them
    row = [62, *[60] * 6, 63, 5, 6, 62, *[60] * 6, 63, 7]
    ids = torch.tensor([[*row, 10 + i, 20 + i] for i in range(calls)])
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(calls * 2 * 24, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 6]] * (2 * calls)),
        "mm_token_type_ids": (ids == 60).int(),
    }
    given = {
        "state": torch.randn(calls, 1, STATE),
        "embodiment": torch.tensor([0, 2, 1, 2]),
        "noise": torch.randn(calls, AHEAD, NUMBERS),
        "times": torch.tensor([0.0, 0.25, 0.6, 0.9995]),
    }
    acting = BatchFeature({"state": given["state"], "embodiment_id": given["embodiment"]})
    with torch.no_grad():
        seen = network.backbone(BatchFeature(dict(inputs)))
        features = seen["backbone_features"].clone()
        encoded = head._encode_features(BatchFeature(dict(seen)), acting)
        buckets = (given["times"] * 1000).long()
        tokens = head.action_encoder(given["noise"], buckets, given["embodiment"])
        tokens = tokens + head.position_embedding(torch.arange(AHEAD))[None]
        hidden = head.model(
            hidden_states=torch.cat([encoded.state_features, tokens], 1),
            encoder_hidden_states=encoded.backbone_features,
            timestep=buckets,
            image_mask=seen["image_mask"],
            backbone_attention_mask=seen["backbone_attention_mask"],
        )
        velocity = head.action_decoder(hidden, given["embodiment"])[:, -AHEAD:]
        torch.manual_seed(1)
        actions = head.get_action(BatchFeature(dict(seen)), acting)["action_pred"]
        torch.manual_seed(1)
        start = torch.randn(calls, AHEAD, NUMBERS)
    outputs = {"features": features, "velocity": velocity, "start": start, "actions": actions, "read": encoded.backbone_features}
    (folder / "config.json").write_text(json.dumps({"model_type": "Gr00tN1d7", **config}))
    weights = {name: weight.clone().contiguous() for name, weight in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    save_file(inputs, folder / "inputs.safetensors")
    save_file({name: value.contiguous() for name, value in {**given, **outputs}.items()}, folder / "computed.safetensors")

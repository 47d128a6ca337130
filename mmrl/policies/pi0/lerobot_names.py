"""Names and shapes of weights in LeRobot's files of pi0, pi0.5 and pi0-FAST (lerobot 0.6.1, `PI0Policy`, `PI05Policy` and
`PI0FastPolicy`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mmrl.policies.acting.flow_noise import weights_without_noise

PALIGEMMA, EXPERT = "paligemma_with_expert.paligemma.", "paligemma_with_expert.gemma_expert."
EMBEDDED = PALIGEMMA + "model.language_model.embed_tokens.weight"
EMBEDDING, UNUSED = "model.vlm.language_model.embed_tokens.weight", "model.dit.embed_tokens.weight"
"""PaliGemma's embedding, which LeRobot loads from its head; the expert's head, which no action depends on."""
HEAD = "lm_head.weight"
"""Of pi0-FAST, which computes with both the embedding and the head."""
RENAMED = (
    (PALIGEMMA + "lm_head.weight", EMBEDDING),
    (EXPERT + "lm_head.weight", UNUSED),
    (PALIGEMMA + "model.vision_tower.vision_model.", "model.vlm.vision_tower."),
    (PALIGEMMA + "model.", "model.vlm."),
    (EXPERT + "model.", "model.dit."),
    *((name, f"embed_action_time.{name}") for name in ("state_proj.", "action_in_proj.", "action_time_mlp_", "time_mlp_")),
)
"""Beginnings of names, LeRobot's without `model.` and those of the network here. The first that fits applies."""
VISION_HEADS = 16
"""Of SigLIP So400m/14, which all pi0 have: no shape tells the number of heads."""


def to_lerobot(name: str) -> str:
    for there, here in RENAMED:
        if name.startswith(here):
            return "model." + there + name.removeprefix(here)
    return "model." + name


def from_lerobot(name: str) -> str:
    name = name.removeprefix("model.")
    for there, here in RENAMED:
        if name.startswith(there):
            return here + name.removeprefix(there)
    return name


def network_weights(tensors: Mapping[str, torch.Tensor], kind: str = "pi0") -> dict[str, torch.Tensor]:
    """The weights under the network's names. A file may hold PaliGemma's embedding under its own name and as its head; after
    fine-tuning the two differ, and LeRobot computes with the first; with both for pi0-FAST, whose embedding is the head where the
    file has the head alone."""
    own = {from_lerobot(name): tensor for name, tensor in tensors.items() if not name.endswith("lm_head.weight")}
    found = {from_lerobot(name): tensor for name, tensor in tensors.items()} | own
    heads = [tensor for name, tensor in tensors.items() if name.endswith(PALIGEMMA + HEAD)]
    return found | {HEAD: heads[0]} if kind == "pi0_fast" and heads else found


def saved_weights(model: torch.nn.Module, kind: str) -> dict[str, torch.Tensor]:
    """The weights under LeRobot's names. pi0.5 has no head of its expert here, and LeRobot's class, which never uses it, wants
    one."""
    found = {to_lerobot(name): tensor.detach().cpu().contiguous() for name, tensor in weights_without_noise(model).items()}
    if kind == "pi0_fast":
        found["model." + EMBEDDED] = found.pop(to_lerobot(EMBEDDING))
        found["model." + PALIGEMMA + HEAD] = found.pop(to_lerobot(HEAD))
    if kind == "pi05":
        head, width = found[to_lerobot(EMBEDDING)], found["model.action_out_proj.weight"].shape[1]
        found[to_lerobot(UNUSED)] = torch.zeros(len(head), width, dtype=head.dtype)
    return found


def sizes(shapes: Mapping[str, Iterable[int]], side: int, kind: str) -> dict[str, Any]:
    """vlm_config and, but for pi0-FAST, dit_config of a `PI0Config` that fits a file of these shapes. side: pixels of a picture.
    Both language models have one head of keys and values, as Gemma 2B has."""
    found = {from_lerobot(name): list(shape) for name, shape in shapes.items()}

    def gemma(prefix: str) -> dict[str, Any]:
        queries, width = found[prefix + "layers.0.self_attn.q_proj.weight"]
        head = found[prefix + "layers.0.self_attn.k_proj.weight"][0]
        return {
            "model_type": "gemma",
            "hidden_size": width,
            "intermediate_size": found[prefix + "layers.0.mlp.up_proj.weight"][0],
            "num_hidden_layers": _depth(found, prefix),
            "num_attention_heads": queries // head,
            "num_key_value_heads": 1,
            "head_dim": head,
            "vocab_size": found[EMBEDDING][0],
        }

    tower = "model.vlm.vision_tower."
    width, _, patch, _ = found[tower + "embeddings.patch_embedding.weight"]
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": width,
        "intermediate_size": found[tower + "encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": _depth(found, tower + "encoder."),
        "num_attention_heads": VISION_HEADS,
        "patch_size": patch,
        "image_size": side,
        "vision_use_head": False,
    }
    text = gemma("model.vlm.language_model.")
    vlm = {"model_type": "paligemma", "text_config": text, "vision_config": vision, "image_token_id": text["vocab_size"]}
    vlm["projection_dim"] = found["model.vlm.multi_modal_projector.linear.weight"][0]
    return {"vlm_config": vlm} if kind == "pi0_fast" else {"vlm_config": vlm, "dit_config": gemma("model.dit.")}


def _depth(names: Iterable[str], prefix: str) -> int:
    layer = re.compile(re.escape(prefix) + r"layers\.(\d+)\.")
    return 1 + max(int(match[1]) for name in names if (match := layer.match(name)))

"""GR00T N1.7 as a whole: the first layers of a Qwen3-VL read pictures and an instruction, and the action head reads their output.

The Qwen3-VL is transformers'. The files hold its weights below `backbone.model.` and don't hold its sizes: config.json names the
model that it was made from. Letters as in `head`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from mmrl.api.errors import UserError, shorten
from mmrl.compute.torchvision import prepare_torchvision
from mmrl.policies.gr00t.config import HeadConfig, head_config
from mmrl.policies.gr00t.head import ActionHead, Context

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEAD, BACKBONE = "action_head.", "backbone.model.model."
IDLE = "backbone.model.lm_head."
"""The head of the Qwen3-VL, which is not used: a copy of its embeddings, where files have it."""
COSMOS = "nvidia/Cosmos-Reason2-2B"
COSMOS_TEXT = {
    **{"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144},
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
}
COSMOS_VISION = {
    **{"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048},
    **{"patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17]},
}
"""Sizes in the config.json of nvidia/Cosmos-Reason2-2B, those of Qwen3-VL-2B-Instruct."""


class Network(nn.Module):
    """`backbone` is a Qwen3-VL without the layers that aren't used, `action_head` reads what its last layer gives to its norm."""

    def __init__(self, backbone: Any, head: HeadConfig, layers: int) -> None:
        """backbone: the configuration of the Qwen3-VL. layers: of its language model, how many are used. Raises UserError if it
        has fewer, or another width than the head reads."""
        prepare_torchvision()
        from transformers import Qwen3VLModel

        super().__init__()
        there, width = backbone.text_config.num_hidden_layers, backbone.text_config.hidden_size
        if not 1 <= layers <= there:
            raise UserError(
                f"config.json: select_layer = {layers!r:.60}, and the backbone has {there} layers: take its own backbone"
            )
        if width != head.backbone_embedding_dim:
            raise UserError(
                f"config.json: backbone_embedding_dim = {head.backbone_embedding_dim}, and the backbone is {width} wide: "
                "take its own backbone"
            )
        self.backbone = Qwen3VLModel._from_config(backbone)
        del self.backbone.language_model.layers[layers:]
        self.action_head = ActionHead(head)

    def features(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[n, P, F]. inputs: of a Qwen3-VL's processor, `mm_token_type_ids` with them."""
        found: list[torch.Tensor] = []
        norm = self.backbone.language_model.norm
        hook = norm.register_forward_pre_hook(lambda _, given: found.append(given[0]))
        try:
            self.backbone(**inputs, use_cache=False)
        finally:
            hook.remove()
            self.backbone.rope_deltas = None
        return found[-1]

    def encode(self, inputs: Mapping[str, torch.Tensor], state_nS: torch.Tensor, embodiment_n: torch.Tensor) -> Context:
        """inputs: see `features`; state_nS, embodiment_n: see `ActionHead.encode`."""
        images_nP = inputs["input_ids"] == self.backbone.config.image_token_id
        real_nP = inputs["attention_mask"].bool()
        return self.action_head.encode(self.features(inputs), real_nP, images_nP, state_nS, embodiment_n)


def load_network(folder: Path, dtype: torch.dtype = torch.float32) -> Network:
    """The network of a folder with a GR00T N1.7. Raises UserError for a folder that holds none, and for weights that are missing,
    left over or of another shape than in config.json."""
    try:
        table = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if table.get("model_type") != "Gr00tN1d7":
            raise ValueError(f"its config.json is of {table.get('model_type')!r:.60}, not of Gr00tN1d7")
        head = head_config(table)
        backbone = backbone_config(str(table.get("model_name", COSMOS)))
        with torch.device("meta"):
            network = Network(backbone, head, table.get("select_layer", 16))
        weights = _weights(folder)
    except UserError as error:
        raise UserError(f"{str(folder)!r}: {error.what}", key="policy.model") from error
    except Exception as error:
        raise UserError(
            f"{str(folder)!r} can't be read: {shorten(error)[:300]}: give a folder with a GR00T N1.7", key="policy.model"
        ) from error
    wanted = {name: tuple(p.shape) for name, p in network.named_parameters()}
    odd = sorted(
        name for name in wanted.keys() | weights.keys() if name not in weights or wanted.get(name) != weights[name].shape
    )
    if odd:
        there = list(weights[odd[0]].shape) if odd[0] in weights else "missing"
        here = list(wanted[odd[0]]) if odd[0] in wanted else "unknown"
        more = f" (and {len(odd) - 1} more weights)" if len(odd) > 1 else ""
        what = f"{odd[0]} is {there} in its files and {here} by its config.json{more}"
        raise UserError(f"{str(folder)!r}: {what}: take both from one checkpoint", key="policy.model")
    with torch.random.fork_rng(devices=[]):  # once more with buffers, such as rotary frequencies, which no file has
        from transformers import initialization

        with initialization.no_init_weights():
            whole = Network(backbone, head, table.get("select_layer", 16))
    whole.load_state_dict({name: weight.to(dtype) for name, weight in weights.items()}, strict=False, assign=True)
    return whole.eval()


def backbone_config(name: str) -> Any:
    """The configuration of the Qwen3-VL that `model_name` of config.json names: a folder, a hub name, or `COSMOS`, whose sizes
    are known."""
    prepare_torchvision()
    from transformers import AutoConfig, Qwen3VLConfig

    if name == COSMOS:
        tokens = {
            "image_token_id": 151655,
            "video_token_id": 151656,
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
        }
        return Qwen3VLConfig(text_config=COSMOS_TEXT, vision_config=COSMOS_VISION, tie_word_embeddings=True, **tokens)
    found = AutoConfig.from_pretrained(name)
    if found.model_type != "qwen3_vl":
        raise UserError(f"config.json: model_name = {name!r} is a {found.model_type} model, not a Qwen3-VL: take GR00T N1.7")
    return found


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the files, under the network's names."""
    index = folder / INDEX
    named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else [SINGLE]
    found: dict[str, torch.Tensor] = {}
    for file in sorted(set(named)):
        with safe_open(folder / file, "pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                if not key.startswith(IDLE):
                    own = f"backbone.{key.removeprefix(BACKBONE)}" if key.startswith(BACKBONE) else key
                    found[own] = opened.get_tensor(key)
    return found

"""GR00T N1.6 as a whole: a SigLIP 2 looks at pictures, the first layers of a Qwen3 read them and an instruction, and the action
head reads their output.

Towers are made of transformers' layers, in the layout of NVIDIA's Eagle-Block2A-2B-v2 (Isaac-GR00T, branch n1.6.1-release,
gr00t/model/modules/nvidia). Letters as in `head`; a call has Q patches of K numbers in all its pictures, E their width.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pixel_unshuffle

from mmrl.api.errors import UserError
from mmrl.api.transfer import upload
from mmrl.policies.gr00t.backbone import Network, check_sizes
from mmrl.policies.gr00t.config import N1_6, TAKE, HeadConfig
from mmrl.policies.gr00t.head import ActionHead
from mmrl.policies.gr00t.hub import CONFIG, json_files
from mmrl.policies.vlm.packed_rows import padded_rows

MERGE = 2
"""A token stands for a square of this many patches on each side."""
TEXT = {
    **{"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151680, "max_position_embeddings": 40960},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
VISION = {
    **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16},
    **{"num_patches": 256, "patch_size": 14},
}
IMAGE = 151669
"""Sizes in the config.json of nvidia/Eagle-Block2A-2B-v2, and the number of its token for pictures."""
FIXED = {"select_layer": -1, "downsample_ratio": 1 / MERGE, "use_backbone_lora": 0, "use_llm_lora": 0}
FIXED_TEXT = {"architectures": ["Qwen3ForCausalLM"]}
FIXED_VISION = {"model_type": "siglip2_vision_model", "use_rope": False, "use_windows_attn": False}
"""Fields of it that have one value; another is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleConfig:
    text_config: Any
    """transformers' `Qwen3Config`."""
    vision_config: Any
    """transformers' `Siglip2VisionConfig`."""
    image_token_id: int

    def save_pretrained(self, folder: Path) -> None:
        """Write its config.json, which `eagle_config` and the published class read."""
        text, vision = self.text_config.to_dict() | FIXED_TEXT, self.vision_config.to_dict() | FIXED_VISION
        text["rope_theta"] = self.text_config.rope_parameters["rope_theta"]
        table = {"model_type": "eagle_3_vl", "image_token_index": self.image_token_id, **FIXED}
        folder.mkdir(parents=True, exist_ok=True)
        written = json.dumps(table | {"text_config": text, "vision_config": vision}, indent=2)
        (folder / CONFIG).write_text(written, encoding="utf-8")


def sized(text: Mapping[str, Any], vision: Mapping[str, Any], image_token: int) -> EagleConfig:
    from transformers import Qwen3Config, Siglip2VisionConfig

    own = {"tie_word_embeddings": True, "attention_bias": False, "use_cache": False}
    return EagleConfig(
        text_config=Qwen3Config(**own | dict(text)),
        vision_config=Siglip2VisionConfig(**vision, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6),
        image_token_id=image_token,
    )


def eagle_config(name: str) -> EagleConfig:
    """Of the Eagle that `model_name` of config.json names: a folder or hub name with its config.json, or that of every published
    N1.6, whose sizes are known. Raises UserError for one of another layout."""
    if name == N1_6.model_name:
        return sized(TEXT, VISION, IMAGE)
    table = json.loads((json_files(name) / CONFIG).read_text(encoding="utf-8"))
    text, vision = (dict(table.get(part) or {}) for part in ("text_config", "vision_config"))
    wanted = (("", table, FIXED), ("text_config.", text, FIXED_TEXT), ("vision_config.", vision, FIXED_VISION))
    for where, given, fixed in wanted:
        for key, value in fixed.items():
            if given.get(key) != value:
                raise UserError(f"{name!r}: {where}{key} = {given.get(key)!r:.60}, and only {value!r} can be read: {TAKE}")
    sizes = {key: text[key] for key in TEXT if key in text}
    sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": float(text["rope_theta"])}
    return sized(sizes, {key: vision[key] for key in VISION}, int(table["image_token_index"]))


class Embeddings(nn.Module):
    """Patches and their places. Places are learned on a square grid, and resized to that of a picture."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.side = round(config.num_patches**0.5)
        self.patch_embedding = nn.Linear(3 * config.patch_size**2, config.hidden_size)
        self.position_embedding = nn.Embedding(config.num_patches, config.hidden_size)

    def forward(self, patches_mQK: torch.Tensor, high: int, wide: int) -> torch.Tensor:
        weights = self.position_embedding.weight
        rows, columns = (_linear(self.side, size, weights.device) for size in (high, wide))
        places = torch.einsum("hi,wj,ije->hwe", rows, columns, weights.float().view(self.side, self.side, -1))
        found: torch.Tensor = self.patch_embedding(patches_mQK.to(weights.dtype))
        return found + places.flatten(0, 1).to(weights.dtype)


@lru_cache(maxsize=64)
def _linear(before: int, after: int, device: torch.device) -> torch.Tensor:
    """float32 [after, before]: weights of torch's bilinear filter with antialiasing, along one axis. They stay on the device."""
    scale = before / after
    reach = max(scale, 1.0)
    with torch.inference_mode(False):  # a later pass may have gradients
        centres = (torch.arange(after)[:, None] + 0.5) * scale - 0.5
        weights = (1 - (torch.arange(before) - centres).abs() / reach).clamp_min(0)
        return (weights / weights.sum(1, keepdim=True)).to(device)


class Tower(nn.Module):
    """All patches of a picture see each other."""

    def __init__(self, config: Any) -> None:
        from transformers.models.siglip2.modeling_siglip2 import Siglip2EncoderLayer

        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = nn.ModuleDict(
            {"layers": nn.ModuleList(Siglip2EncoderLayer(config) for _ in range(config.num_hidden_layers))}
        )
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, patches_mQK: torch.Tensor, high: int, wide: int) -> torch.Tensor:
        """Pictures of one size -> [m, tokens, MERGE^2 E]."""
        x = self.embeddings(patches_mQK, high, wide)
        layers: Any = self.encoder["layers"]
        for layer in layers:
            x = layer(x, attention_mask=None)
        grid = self.post_layernorm(x).unflatten(1, (high, wide)).permute(0, 3, 1, 2)
        return pixel_unshuffle(grid, MERGE).flatten(2).transpose(1, 2)


class Eagle(nn.Module):
    def __init__(self, config: EagleConfig, layers: int, attention: str) -> None:
        from transformers import Qwen3Model

        super().__init__()
        text, vision = copy.deepcopy(config.text_config), copy.deepcopy(config.vision_config)
        vision._attn_implementation = attention
        self.config = config
        self.vision_model = Tower(vision)
        inputs, width = MERGE**2 * vision.hidden_size, text.hidden_size
        self.projector = nn.Sequential(nn.LayerNorm(inputs), nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width))
        self.language_model = Qwen3Model._from_config(text, attn_implementation=attention)
        del self.language_model.layers[layers:]

    def look(self, patches_nQK: torch.Tensor, grids: Sequence[tuple[int, int]]) -> torch.Tensor:
        """[n, tokens of all pictures, F]. grids: patches along the height and width of each picture of a call, the same in all
        calls. Pictures of one size that follow each other are looked at together."""
        found, start = [], 0
        for (high, wide), alike in itertools.groupby(grids):
            count = len(list(alike)) * high * wide
            pictures = patches_nQK[:, start : start + count].unflatten(1, (-1, high * wide)).flatten(0, 1)
            found.append(self.vision_model(pictures, high, wide).unflatten(0, (len(patches_nQK), -1)).flatten(1, 2))
            start += count
        seen: torch.Tensor = self.projector(torch.cat(found, 1))
        return seen


class EagleNetwork(Network):
    """`action_head` reads what the last layer of `backbone` that is used gives, after the final norm."""

    backbone: Eagle

    def __init__(self, backbone: EagleConfig, head: HeadConfig, layers: int, attention: str = "sdpa") -> None:
        """See `Network`."""
        nn.Module.__init__(self)
        check_sizes(backbone.text_config, head, layers)
        self.backbone = Eagle(backbone, layers, attention)
        self.action_head = ActionHead(head)

    def _uploaded(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        real_nP = inputs["attention_mask"].bool()
        places_nP = (real_nP.cumsum(1) - 1).clamp_min(0)
        found = {"input_ids": inputs["input_ids"], "position_ids": places_nP}
        return upload(found if real_nP.all() else found | {"real_nP": real_nP}, inputs["pixel_values"].device)

    def _read(self, inputs: Mapping[str, torch.Tensor], there: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """inputs: of an `EagleReader`. Pixels are [n, Q, K], and `image_grid` says on the host how many patches along height and
        width each picture of a call has."""
        language, ids_nP, real_nP = self.backbone.language_model, there["input_ids"], there.get("real_nP")
        grids = [(high, wide) for high, wide in inputs["image_grid"].tolist()]
        seen = self.backbone.look(inputs["pixel_values"], grids)
        embeds = language.embed_tokens(ids_nP)
        embeds = embeds.masked_scatter((ids_nP == self.image_token)[..., None], seen.to(embeds.dtype))
        with nullcontext() if real_nP is None else padded_rows(type(language.config)):
            found: torch.Tensor = language(
                inputs_embeds=embeds, attention_mask=real_nP, position_ids=there["position_ids"], use_cache=False
            ).last_hidden_state
        return found

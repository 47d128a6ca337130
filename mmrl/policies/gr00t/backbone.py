"""GR00T N1.7 as a whole: the first layers of a Qwen3-VL read pictures and an instruction, and the action head reads their output.

The Qwen3-VL is transformers'. config.json names the model that it was made from, which has its sizes. Letters as in `head`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from mmrl.api.errors import UserError
from mmrl.api.transfer import upload
from mmrl.policies.gr00t.config import N1_7, HeadConfig
from mmrl.policies.gr00t.head import ActionHead, Context
from mmrl.policies.vlm.packed_rows import padded_rows
from mmrl.policies.vlm.vision import count_on_host, stack_pictures

COSMOS = N1_7.model_name
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

    def __init__(self, backbone: Any, head: HeadConfig, layers: int, attention: str = "sdpa") -> None:
        """backbone: the configuration of the Qwen3-VL. layers: of its language model, how many are used. attention: of the
        Qwen3-VL, see `policy.attn_implementation`. Raises UserError if it has fewer layers, or another width than the head
        reads."""
        from transformers import Qwen3VLModel

        super().__init__()
        check_sizes(backbone.text_config, head, layers)
        self.backbone = Qwen3VLModel._from_config(copy.deepcopy(backbone), attn_implementation=attention)
        del self.backbone.language_model.layers[layers:]
        count_on_host(self.backbone)
        if attention == "sdpa":
            stack_pictures(self.backbone)
        self.action_head = ActionHead(head)

    @property
    def image_token(self) -> int:
        found: int = self.backbone.config.image_token_id
        return found

    def features(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[n, P, F]: the output of the last layer that is used, before its final norm. inputs: of a Qwen3-VL's processor,
        `mm_token_type_ids` with them, and as many pictures in each call. All but the pixels are on the host, where what depends
        on their numbers is computed: a device would be waited for."""
        return self._read(inputs, self._uploaded(inputs))

    def encode(self, inputs: Mapping[str, torch.Tensor], state_nS: torch.Tensor, embodiment_n: torch.Tensor) -> Context:
        """inputs: see `features`; state_nS, embodiment_n: see `ActionHead.encode`."""
        there = self._uploaded(inputs)
        images_nP = there["input_ids"] == self.image_token
        return self.action_head.encode(self._read(inputs, there), there.get("real_nP"), images_nP, state_nS, embodiment_n)

    def _uploaded(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is read of a call besides pixels, on their device; `real_nP` only where there is padding."""
        real_nP = inputs["attention_mask"].bool()
        found = {"input_ids": inputs["input_ids"], "position_ids": self._positions(inputs)}
        return upload(found if real_nP.all() else found | {"real_nP": real_nP}, inputs["pixel_values"].device)

    def _positions(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """int64 [3, n, P], counted once for all calls that are alike: most have one instruction."""
        names = ("input_ids", "mm_token_type_ids", "attention_mask")
        ids_nP, types_nP, mask_nP = (inputs[name].long() for name in names)
        grids_nC3 = inputs["image_grid_thw"].unflatten(0, (len(ids_nP), -1))
        kind_n = torch.cat([ids_nP, mask_nP, grids_nC3.flatten(1)], 1).unique(dim=0, return_inverse=True)[1]
        rows = torch.tensor([kind_n.tolist().index(kind) for kind in range(int(kind_n.max()) + 1)])  # the first of each kind
        counted: torch.Tensor = self.backbone.get_rope_index(
            ids_nP[rows],
            mm_token_type_ids=types_nP[rows],
            image_grid_thw=grids_nC3[rows].flatten(0, 1),
            attention_mask=mask_nP[rows],
        )[0]
        return counted[:, kind_n]

    def _read(self, inputs: Mapping[str, torch.Tensor], there: Mapping[str, torch.Tensor]) -> torch.Tensor:
        found: list[torch.Tensor] = []
        language = self.backbone.language_model
        given = {name: there[name] for name in ("input_ids", "position_ids")}
        given |= {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        real_nP = there.get("real_nP")
        hook = language.norm.register_forward_pre_hook(lambda _, read: found.append(read[0]))
        try:
            with nullcontext() if real_nP is None else padded_rows(type(language.config)):
                self.backbone(**given, attention_mask=real_nP, use_cache=False)
        finally:
            hook.remove()
        return found[-1]


def check_sizes(text: Any, head: HeadConfig, layers: int) -> None:
    """text: the configuration of a language model. Raises UserError if it has fewer layers than are used, or another width than
    the head reads."""
    there, width = text.num_hidden_layers, text.hidden_size
    if not 1 <= layers <= there:
        raise UserError(f"config.json: select_layer = {layers!r:.60}, and the backbone has {there} layers: take its own backbone")
    if width != head.backbone_embedding_dim:
        raise UserError(
            f"config.json: backbone_embedding_dim = {head.backbone_embedding_dim}, and the backbone is {width} wide: "
            "take its own backbone"
        )


def backbone_config(name: str) -> Any:
    """The configuration of the Qwen3-VL that `model_name` of config.json names: a folder, a hub name, or `COSMOS`, whose sizes
    are known."""
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

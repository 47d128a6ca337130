"""Names of an X-VLA's weights in files: LeRobot's, and those of X-VLA's authors, which are Microsoft's for Florence-2."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

PREFIX = "model."
"""Beginning of LeRobot's names."""
EMBEDDING, SHARED = "vlm.language_model.encoder.embed_tokens.weight", "vlm.language_model.shared.weight"
"""The same weights; a file has one of the two names, or both."""
PROJECTION = "vlm.image_projection"
_BLOCK = r"(vlm\.vision_tower\.blocks\.\d+\.\d+\.(?:spatial|channel)_block)\."
_OF_MICROSOFT = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"(vlm\.vision_tower\.convs\.\d+)\.proj\.", r"\1.conv."),
        (_BLOCK + r"(conv[12])\.fn\.dw\.", r"\1.\2."),
        (_BLOCK + r"(?:window|channel)_attn\.norm\.", r"\1.norm1."),
        (_BLOCK + r"((?:window|channel)_attn)\.fn\.", r"\1.\2."),
        (_BLOCK + r"ffn\.norm\.", r"\1.norm2."),
        (_BLOCK + r"ffn\.fn\.net\.", r"\1.ffn."),
        (r"vlm\.image_proj_norm\.", "vlm.multi_modal_projector.image_proj_norm."),
        (r"vlm\.image_pos_embed\.", "vlm.multi_modal_projector.image_position_embed."),
        (r"vlm\.visual_temporal_embed\.", "vlm.multi_modal_projector.visual_temporal_embed."),
        (r"vlm\.language_model\.model\.", "vlm.language_model."),
    )
)
_UNUSED = re.compile(r"vlm\.language_model\.(decoder\.|lm_head\.|final_logits_bias$)")
"""Parts of Florence-2 that write text."""


def network_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A file's weights under the network's names."""
    found = {}
    for key, value in weights.items():
        name = key.removeprefix(PREFIX)
        if name == PROJECTION:  # a matrix that is multiplied from the right
            found["vlm.multi_modal_projector.image_projection.weight"] = value.T.contiguous()
            continue
        for pattern, new in _OF_MICROSOFT:
            if pattern.match(name):
                name = pattern.sub(new, name, count=1)
                break
        if _UNUSED.match(name):
            continue
        if name.startswith("transformer."):
            name = "action_head." + name.removeprefix("transformer.")
        found[name] = value
    if (shared := found.pop(SHARED, None)) is not None:
        found.setdefault(EMBEDDING, shared)
    return found


def saved_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The network's weights under LeRobot's names."""
    found = {}
    for name, value in weights.items():
        name = SHARED if name == EMBEDDING else name
        if name.startswith("action_head."):
            name = "transformer." + name.removeprefix("action_head.")
        found[PREFIX + name] = value.contiguous()
    return found

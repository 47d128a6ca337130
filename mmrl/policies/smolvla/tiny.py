"""A small but real SmolVLA: built from its config, random weights, a tokenizer of its own.

`tiny:smolvla` in a run file builds the default size, `tiny:smolvla:hidden=64,layers=2,chunk=50` says it in full.
"""

from __future__ import annotations

from typing import Any

from mmrl.policies.names import Size, TinyNames
from mmrl.policies.smolvla.config import SmolVLAConfig
from mmrl.policies.vlm.tiny.checkpoint import eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer

SIZES = {"hidden": Size(64, 16, 4096, step=8), "layers": Size(2, 1, 64), "chunk": Size(50, 1, 256)}
"""Width of the language model and the vision tower (the expert has three quarters of it); depth of all three; predicted
actions."""
NAMES = TinyNames(family="smolvla", called="SmolVLA", sizes=SIZES)
parse, full_name = NAMES.parse, NAMES.full_name
SIDE = 56
NAMED = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}
"""Attribute of a SmolVLM's tokenizer -> its special token."""


def parts(name: str) -> tuple[SmolVLAConfig, Any, Any]:
    """(configuration, that of its SmolVLM, tokenizer), for pictures of 56 pixels, 16 tokens each."""
    from transformers import SmolVLMConfig

    sizes = parse(name, 0)
    hidden, layers = sizes["hidden"], sizes["layers"]
    tokenizer = make_tokenizer(named=NAMED)
    vlm = SmolVLMConfig(
        text_config=text("llama", tokenizer, hidden, layers),
        vision_config=eye("", hidden, layers, image_size=SIDE),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
        **ids(tokenizer, image_token_id=NAMED["image_token"]),
    )
    config = SmolVLAConfig(
        chunk_size=sizes["chunk"],
        n_action_steps=min(10, sizes["chunk"]),
        num_steps=4,
        resize_imgs_with_padding=(SIDE, SIDE),
        num_vlm_layers=layers,
        vlm_model_name=name,
    )
    return config, vlm, tokenizer

"""A small but real SmolVLA: built from its config, random weights, a tokenizer of its own.

`tiny:smolvla` in a run file builds the default size, `tiny:smolvla:hidden=64,layers=2,chunk=50` says it in full.
"""

from __future__ import annotations

from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.names import tiny_name, tiny_sizes
from mmrl.policies.smolvla.config import SmolVLAConfig
from mmrl.policies.vlm.tiny.checkpoint import eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer

FAMILY = "smolvla"
SIZES = {"hidden": 64, "layers": 2, "chunk": 50}
"""Width of the language model and the vision tower (the expert has three quarters of it); depth of all three; predicted
actions."""
SIDE = 56
NAMED = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
}
"""Attribute of a SmolVLM's tokenizer -> its special token."""


def parse(name: str, seed: int) -> dict[str, int]:
    """`tiny:smolvla[:key=value,...]` -> its sizes and seed. Raises UserError for an unknown or invalid part."""
    if name.split(":")[1] != FAMILY:
        raise UserError(f"{name!r} is no SmolVLA: write tiny:{FAMILY}, or a folder or hub name of one", key="policy.model")
    _, options = tiny_sizes(name, SIZES, seed)
    hidden, layers, chunk = (options[name] for name in SIZES)
    if hidden % 8 or not 16 <= hidden <= 4096 or not 1 <= layers <= 64 or not 1 <= chunk <= 256:
        raise UserError(
            f"{name!r}: hidden must be a multiple of 8 from 16 to 4096, layers 1 to 64, chunk 1 to 256: change them",
            key="policy.model",
        )
    return options


def full_name(name: str, seed: int) -> str:
    """`name` with everything that `parse` would add, so that it stands for the same weights whatever the seed of a run."""
    return tiny_name(FAMILY, parse(name, seed))


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

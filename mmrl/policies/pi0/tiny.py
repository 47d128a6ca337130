"""A small but real pi0, pi0.5 or pi0-FAST: built from its config, random weights, a tokenizer of its own.

`tiny:pi0` in a run file builds the default size, `tiny:pi0:hidden=64,layers=2,chunk=50` says it in full; `tiny:pi05` and
`tiny:pi0_fast` likewise.
"""

from __future__ import annotations

from typing import Any

import torch

from mmrl.policies.names import Size, TinyNames
from mmrl.policies.pi0.lerobot_layout import KINDS
from mmrl.policies.pi0.lerobot_names import VISION_HEADS
from mmrl.policies.pi0.networks import config_class
from mmrl.policies.pi0.tiny_fast import fast_words
from mmrl.policies.vlm.tiny.tokens import make_tokenizer

SIZES = {"hidden": Size(64, 32, 4096, step=32), "layers": Size(2, 1, 64), "chunk": Size(50, 1, 256)}
"""Width of the language model and the vision tower (the expert has half of it); depth of all three; predicted actions."""
NAMES = {kind: TinyNames(family=kind, called=kind, sizes=SIZES) for kind in KINDS}


def parse(name: str, seed: int, kind: str = "pi0") -> dict[str, int]:
    """See `TinyNames.parse`: keyword arguments of `build`."""
    return NAMES[kind].parse(name, seed)


def config(kind: str, hidden: int, layers: int, chunk: int, attention: str = "sdpa") -> Any:
    """A `PI0Config` for pictures of 56 pixels, 16 tokens each; actions and states have up to 32 numbers, as in pi0."""
    tokenizer = make_tokenizer() if kind != "pi0_fast" else fast_words()
    heads = 4
    shared = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": hidden // heads}
    shared |= {
        "vocab_size": 512 if kind != "pi0_fast" else len(tokenizer),
        "max_position_embeddings": 4096,
        "pad_token_id": tokenizer.pad_token_id,
    }
    eye = {"model_type": "siglip_vision_model", "hidden_size": hidden, "intermediate_size": 2 * hidden, "image_size": 56}
    eye |= {"patch_size": 14, "num_hidden_layers": layers, "num_attention_heads": VISION_HEADS, "vision_use_head": False}
    vlm = {
        "model_type": "paligemma",
        "text_config": {"model_type": "gemma", "hidden_size": hidden, "intermediate_size": 3 * hidden, **shared},
        "vision_config": eye,
        "projection_dim": hidden,
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
    }
    expert = {"model_type": "gemma", "hidden_size": hidden // 2, "intermediate_size": 2 * hidden, **shared}
    return config_class(kind)(vlm_config=vlm, dit_config=expert, chunk_size=chunk, attn_implementation=attention)


def build(
    network: Any,
    kind: str,
    *,
    hidden: int,
    layers: int,
    chunk: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
) -> tuple[Any, Any]:
    """A model of this class of network and its tokenizer. Same arguments, same weights."""
    settings = config(kind, hidden, layers, chunk, attention)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network(settings)
    for name, parameter in model.named_parameters():
        if not any(part in name for part in network._keep_in_fp32_modules_strict):
            parameter.data = parameter.data.to(dtype)
    tokenizer = make_tokenizer() if kind != "pi0_fast" else fast_words()
    tokenizer.bos_token = "<|im_start|>"
    return model, tokenizer

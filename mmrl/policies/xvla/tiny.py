"""A small but real X-VLA: built from its config, random weights, a tokenizer of its own.

`tiny:xvla` in a run file builds the default size, `tiny:xvla:hidden=64,layers=2,chunk=30` says it in full.
"""

from __future__ import annotations

from typing import Any

from mmrl.policies.names import Size, TinyNames
from mmrl.policies.vlm.tiny.tokens import make_tokenizer, rows

SIZES = {"hidden": Size(64, 16, 4096, step=8), "layers": Size(2, 1, 64), "chunk": Size(30, 1, 256)}
"""Width of the transformer, the language model and the vision tower's last stage; depth of the former two; predicted actions."""
NAMES = TinyNames(family="xvla", called="X-VLA", sizes=SIZES)
parse, full_name = NAMES.parse, NAMES.full_name
SIDE, HEADS = 64, 4


def parts(name: str) -> tuple[dict[str, Any], Any]:
    """(config.json, tokenizer), for two views of 64 pixels, 5 tokens each, three domains, and the space `auto`."""
    sizes = parse(name, 0)
    hidden, layers, tokenizer = sizes["hidden"], sizes["layers"], make_tokenizer()
    vision = {"depths": [1, 1], "embed_dim": [hidden // 2, hidden], "num_heads": [2, 4], "num_groups": [2, 4], "window_size": 4}
    vision |= {"patch_size": [7, 3], "patch_stride": [8, 4], "patch_padding": [3, 1], "patch_prenorm": [False, True]}
    vision |= {"projection_dim": hidden, "mlp_ratio": 2.0, "max_position_embeddings": 16}
    text = {"d_model": hidden, "encoder_layers": layers, "encoder_attention_heads": HEADS, "encoder_ffn_dim": 3 * hidden}
    text |= {"decoder_layers": 1, "decoder_attention_heads": HEADS, "decoder_ffn_dim": hidden, "vocab_size": rows(tokenizer)}
    text |= {"max_position_embeddings": 128, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    table = {
        "type": "xvla",
        "chunk_size": sizes["chunk"],
        "n_action_steps": min(10, sizes["chunk"]),
        "num_denoising_steps": 4,
        "hidden_size": hidden,
        "depth": layers,
        "num_heads": HEADS,
        "mlp_ratio": 2.0,
        "num_domains": 3,
        "len_soft_prompts": 4,
        "dim_time": 8,
        "action_mode": "auto",
        "max_state_dim": 20,
        "resize_imgs_with_padding": [SIDE, SIDE],
        "num_image_views": 2,
        "tokenizer_max_length": 24,
        "tokenizer_name": name,
        "florence_config": {"vision_config": vision, "text_config": text},
    }
    return table, tokenizer

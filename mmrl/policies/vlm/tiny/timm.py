"""Tiny checkpoints of families whose vision tower is timm's, a package that must be installed for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as hf

from mmrl.api.errors import UserError
from mmrl.policies.vlm.tiny.checkpoint import HEADS, PATCH, SIDE, Checkpoint, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, rows, template

TOKENS = 4
"""Tokens of a picture or tile."""
MOBILENET_WIDTH = 2048
"""Channels that leave timm's MobileNetV5, however narrow its blocks are."""


def _refuse_without_timm(kind: str) -> None:
    from transformers.utils import is_timm_available

    if not is_timm_available():
        raise UserError(f"a {kind} model needs the Python package timm: install timm", key="policy.model")


def gemma3n(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Gemma 3n: pictures of one size through a MobileNet, several copies of the hidden states, embeddings for each layer. Windows
    and full attention take turns; layers behind the second read the keys and values of the first two."""
    _refuse_without_timm("gemma3n")
    named = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    named |= {"boa_token": "<start_of_audio>", "audio_token": "<audio_soft_token>", "eoa_token": "<end_of_audio>"}
    tokenizer = make_tokenizer(words, named=named)
    own: dict[str, Any] = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": rows(tokenizer), "laurel_rank": 8}
    own |= {"layer_types": [("sliding_attention", "full_attention")[i % 2] for i in range(layers)], "sliding_window": 1024}
    own |= {"num_kv_shared_layers": max(0, layers - 2), "activation_sparsity_pattern": [0.5] + [0.0] * (layers - 1)}
    narrow = {"channel_multiplier": 0.02, "stem_size": 16, "msfa_output_resolution": 2}
    soft = {"vocab_size": 8, "vocab_offset": rows(tokenizer)}  # embeddings of their own, behind those of text
    config = hf.Gemma3nConfig(
        text_config=text("gemma3n_text", tokenizer, hidden, layers, head_dim=hidden // HEADS, **own),
        vision_config={"hidden_size": MOBILENET_WIDTH, "model_args": narrow, **soft},
        audio_config={
            "vocab_size": 8,
            "vocab_offset": rows(tokenizer) + 8,
            "hidden_size": hidden,
            "conf_num_attention_heads": HEADS,
            "conf_num_hidden_layers": 1,
            "sscp_conv_channel_size": [8, 4],
        },
        vision_soft_tokens_per_image=TOKENS,
        **ids(tokenizer, **{f"{name}_id": token for name, token in named.items()}),
    )

    def processor() -> hf.Gemma3nProcessor:
        return hf.Gemma3nProcessor(
            hf.Gemma3nAudioFeatureExtractor(),
            hf.SiglipImageProcessor(size={"height": 2 * SIDE, "width": 2 * SIDE}),
            tokenizer,
            chat_template=template(named["image_token"]),
            image_seq_length=TOKENS,
        )

    return Checkpoint(config, hf.Gemma3nForConditionalGeneration, tokenizer, processor)


def perception_lm(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """PerceptionLM: up to 36 tiles, and a small picture of the whole."""
    _refuse_without_timm("perception_lm")
    named = {"image_token": "<|image|>", "video_token": "<|video|>"}
    tokenizer = make_tokenizer(words, named=named)
    sizes = {"embed_dim": hidden, "depth": layers, "num_heads": HEADS, "mlp_ratio": 2.0, "init_values": 0.1}
    grid = {"img_size": [SIDE, SIDE], "patch_size": PATCH, "ref_feat_shape": [SIDE // PATCH, SIDE // PATCH]}
    config = hf.PerceptionLMConfig(
        text_config=text("llama", tokenizer, hidden, layers),
        vision_config={
            "architecture": "vit_pe_lang_large_patch14_448",
            "do_pooling": False,
            "initializer_range": 0.02,
            "num_classes": 0,
            "label_names": [],
            "model_args": sizes | grid | {"global_pool": "", "use_post_transformer_norm": False},
        },
        vision_use_cls_token=True,
        projector_pooling_ratio=2,
        **ids(tokenizer, **{f"{name}_id": token for name, token in named.items()}),
    )

    def processor() -> hf.PerceptionLMProcessor:
        size = {"height": SIDE, "width": SIDE}
        images = hf.PerceptionLMImageProcessor(tile_size=SIDE, max_num_tiles=4, size=size)
        videos = hf.PerceptionLMVideoProcessor(size=size)
        layout = template(named["image_token"], named["video_token"])
        return hf.PerceptionLMProcessor(videos, images, tokenizer, patch_size=PATCH, pooling_ratio=2, chat_template=layout)

    return Checkpoint(config, hf.PerceptionLMForConditionalGeneration, tokenizer, processor)

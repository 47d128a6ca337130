"""Tiny checkpoints of families whose language model is a mixture of experts of its own kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import HEADS, SIDE, Checkpoint, eye, in_turn, text
from mmrl.policies.vlm.tiny.checkpoint import PATCH as TILE_PATCH
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

PATCH = 14


def kimi_k25(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Kimi K2.5: pictures of any shape, latent attention, experts in all layers but the first."""
    named = {"image_token": "<|media_pad|>", "video_token": "<|kimi_k25_video_placeholder|>"}
    tokenizer = make_tokenizer(words, ["<|media_begin|>", "<|media_content|>", "<|media_end|>"], named)
    width = hidden // HEADS
    latent = {"kv_lora_rank": hidden // 2, "q_lora_rank": hidden, "qk_rope_head_dim": width, "qk_nope_head_dim": width}
    latent |= {"v_head_dim": width, "num_key_value_heads": HEADS}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": hidden, "first_k_dense_replace": 1}
    experts |= {"n_group": 1, "topk_group": 1, "num_mtp_layers": 0}
    grid = {"pos_emb_height": 8, "pos_emb_width": 8, "patch_size": PATCH}
    config = hf.Kimi_K25Config(
        text_config=text("deepseek_v3", tokenizer, hidden, layers, **latent, **experts),
        vision_config=eye("kimi_k25_vision", hidden, layers, **grid),
        projection_hidden_size=hidden,
        tie_word_embeddings=False,
        **ids(
            tokenizer,
            **{f"{name}_id": token for name, token in named.items()},
            vision_start_token_id="<|media_begin|>",
            vision_end_token_id="<|media_end|>",
        ),
    )
    picture = f"<|media_begin|>image<|media_content|>{named['image_token']}<|media_end|>"

    def processor() -> hf.Kimi_K25Processor:
        images = hf.Kimi_K25ImageProcessor(patch_size=PATCH, max_patches=1024)
        videos = hf.Kimi_K25VideoProcessor(patch_size=PATCH, max_patches=1024)
        return hf.Kimi_K25Processor(images, tokenizer, videos, chat_template=template(picture, named["video_token"]))

    return Checkpoint(config, hf.Kimi_K25ForConditionalGeneration, tokenizer, processor)


def ernie4_5_vl_moe(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """ERNIE 4.5 VL: pictures of any shape; words and pictures have experts of their own in all layers but the
    last, and not the first as in full-size ones, so that two layers show them.
    Times are not drawn on the frames of videos, which takes a font that comes with a checkpoint."""
    kinds = ("image", "video")
    named = {f"{kind}_token": f"<|{kind.upper()}_PLACEHOLDER|>" for kind in kinds}
    named |= {f"{kind}_{end}_token": f"<|{kind.upper()}_{end.upper()}|>" for kind in kinds for end in ("start", "end")}
    tokenizer = make_tokenizer(words, named=named)
    half = hidden // HEADS // 2  # rotary pairs per head, split into height, width and time
    side = half * 3 // 8
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [side, side, half - 2 * side]}
    experts = {"moe_intermediate_size": [hidden, hidden // 2], "moe_k": 2, "moe_num_experts": 4, "moe_num_shared_experts": 1}
    experts["mlp_layer_types"] = in_turn(layers, "sparse", "dense")
    config = hf.Ernie4_5_VLMoeConfig(
        text_config=text("ernie4_5_vl_moe_text", tokenizer, hidden, layers, rope_parameters=rope, **experts),
        vision_config={
            "depth": layers,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_heads": HEADS,
            "patch_size": PATCH,
        },
        **ids(tokenizer, **{f"{name}_id": token for name, token in named.items()}),
    )
    cell = (2 * PATCH) ** 2  # pixels behind one visual token
    limits = {"shortest_edge": 4 * cell, "longest_edge": 1024 * cell}
    pictures = [named[f"{kind}_start_token"] + named[f"{kind}_token"] + named[f"{kind}_end_token"] for kind in kinds]

    def processor() -> hf.Ernie4_5_VLMoeProcessor:
        images = hf.Ernie4_5_VLMoeImageProcessor(patch_size=PATCH, size=limits)
        videos = hf.Ernie4_5_VLMoeVideoProcessor(patch_size=PATCH, size=limits, draw_on_frames=False)
        return hf.Ernie4_5_VLMoeProcessor(images, tokenizer, videos, chat_template=template(*pictures))

    return Checkpoint(config, hf.Ernie4_5_VLMoeForConditionalGeneration, tokenizer, processor)


def llama4(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Llama 4: up to four tiles, and a small picture of the whole. Layers see chunks of the text, but for the last, which has no
    positions and experts."""
    marks = ["<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>"]
    tokenizer = make_tokenizer(words, [*marks, "<|image|>"])
    width = hidden // HEADS
    experts = {"num_local_experts": 4, "intermediate_size_mlp": 2 * hidden, "moe_layers": [*range(layers - 1, -1, -2)]}
    kinds = in_turn(layers, "chunked_attention")
    chunks = {"layer_types": kinds, "attention_chunk_size": 1024, "head_dim": width}
    chunks["no_rope_layers"] = [int(kind == "chunked_attention") for kind in kinds]
    config = hf.Llama4Config(
        text_config=text("llama4_text", tokenizer, hidden, layers, **experts, **chunks),
        vision_config=eye("llama4_vision_model", hidden, layers, intermediate_size=4 * hidden)
        | {"vision_output_dim": hidden, "projector_input_dim": hidden, "projector_output_dim": hidden},
        **ids(tokenizer, boi_token_index=marks[0], eoi_token_index=marks[1], image_token_index="<|patch|>"),
    )

    def processor() -> hf.Llama4Processor:
        images = hf.Llama4ImageProcessor(size={"height": SIDE, "width": SIDE}, max_patches=4)
        return hf.Llama4Processor(images, tokenizer, patch_size=TILE_PATCH, chat_template=template("<|image|>"))

    return Checkpoint(config, hf.Llama4ForConditionalGeneration, tokenizer, processor)


def step3p7(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Step 3.7 Flash: crops of a large picture and the whole; windows and full attention in turn; experts in all layers but the
    first."""
    marks = ["<im_patch>", "<patch_start>", "<patch_end>", "<patch_newline>", "<im_start>", "<im_end>"]
    tokenizer = make_tokenizer(words, marks, {})
    own: dict[str, Any] = {
        "head_dim": hidden // HEADS,
        "layer_types": in_turn(layers, "sliding_attention"),
        "sliding_window": 1024,
    }
    own |= {"mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1), "n_routed_experts": 4, "num_experts_per_tok": 2}
    own |= {"moe_intermediate_size": hidden, "share_expert_dim": hidden}
    sight = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": HEADS, "mlp_ratio": 2.0}
    grid = {"image_size": 2 * SIDE, "patch_size": TILE_PATCH, "max_position_embeddings": (2 * SIDE // TILE_PATCH) ** 2}
    config = hf.Step3p7Config(
        text_config=text("step3p5", tokenizer, hidden, layers, **own),
        vision_config=sight | grid,
        **ids(tokenizer, image_token_id=marks[0]),
    )

    def processor() -> hf.Step3p7Processor:
        size = {"height": 2 * SIDE, "width": 2 * SIDE}
        images = hf.Step3p7ImageProcessor(size=size, patch_size=SIDE, max_image_size=8 * SIDE, vision_patch_size=TILE_PATCH)
        return hf.Step3p7Processor(images, tokenizer, chat_template=template(marks[0]))

    return Checkpoint(config, hf.Step3p7ForConditionalGeneration, tokenizer, processor)

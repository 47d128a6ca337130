"""Tiny checkpoints of the thinkers of Qwen2.5-Omni and Qwen3-Omni, which see pictures and videos, hear sounds and write text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import transformers as hf

from mmrl.policies.vlm.tiny.audio import BANDS, HOP, RATE, SECONDS
from mmrl.policies.vlm.tiny.checkpoint import HEADS, Checkpoint
from mmrl.policies.vlm.tiny.qwen import EXPERTS, sizes, sizes3
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, rows, template

Settings = dict[str, Any]


def qwen2_5_omni(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """25 tokens for each second of sound, and 25 positions for each second of video. Its encoder hears half a second at a time
    (two seconds in published models)."""
    tokens = {"image": "<|IMAGE|>", "video": "<|VIDEO|>", "audio": "<|AUDIO|>"}
    tokens |= {name: f"<|{name}|>" for name in ("vision_bos", "vision_eos", "audio_bos", "audio_eos")}
    text, vision = sizes(hidden, layers)
    vision |= {"window_size": 112, "fullatt_block_indexes": [layers - 1]}
    ears = {"n_window": 25, "max_source_positions": SECONDS * RATE // HOP // 2}
    numbers = {f"{kind}_token_index": tokens[kind] for kind in ("image", "video", "audio")}
    return _checkpoint("Qwen2_5Omni", tokens, numbers, text, vision, ears, {}, words)


def qwen3_omni_moe(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """13 tokens for each second of sound, and 13 positions for each second of video, with fractions. Experts in every layer. Its
    encoder hears two seconds at a time (eight in published models)."""
    tokens = {kind: f"<|{kind}_pad|>" for kind in ("image", "video", "audio")}
    numbers = {f"{kind}_token_id": token for kind, token in tokens.items()}
    tokens |= {"vision_bos": "<|vision_start|>", "vision_eos": "<|vision_end|>"}
    tokens |= {"audio_bos": "<|audio_start|>", "audio_eos": "<|audio_end|>"}
    text, vision = sizes3(hidden, layers)
    text |= {**EXPERTS, "moe_intermediate_size": hidden}
    vision |= {"image_size": 256, "apply_vit_abs_pos_embed": True}  # stand in published configurations, and vLLM asks
    ears = {"n_window_infer": 200, "downsample_hidden_size": 8}
    return _checkpoint("Qwen3OmniMoe", tokens, numbers, text, vision, ears, {"position_id_per_seconds": 13}, words)


def _checkpoint(
    name: str,
    tokens: Mapping[str, str],
    numbers: Mapping[str, str],
    text: Settings,
    vision: Settings,
    ears: Settings,
    own: Settings,
    words: Sequence[str],
) -> Checkpoint:
    """name: that of the family's classes in transformers, without an ending. tokens: name -> token, as the processor reads it of
    the tokenizer. numbers: setting of the configuration -> the token whose id it is."""
    tokenizer = make_tokenizer(words, named={f"{key}_token": token for key, token in tokens.items()})
    text |= {"vocab_size": rows(tokenizer), "tie_word_embeddings": False}
    text |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    ears |= {"num_mel_bins": BANDS, "encoder_layers": layers, "encoder_attention_heads": HEADS, "encoder_ffn_dim": 2 * hidden}
    edges = {f"{kind}_start_token_id": tokens[f"{kind}_bos"] for kind in ("vision", "audio")}
    edges |= {f"{kind}_end_token_id": tokens[f"{kind}_eos"] for kind in ("vision", "audio")}
    config = getattr(hf, f"{name}ThinkerConfig")(
        text_config=text,
        vision_config=vision,
        audio_config={**ears, "d_model": hidden, "output_dim": hidden},
        tie_word_embeddings=False,
        **own,
        **ids(tokenizer, user_token_id="user", **numbers, **edges),
    )

    def processor() -> Any:
        patch = vision["patch_size"]
        cell = (2 * patch) ** 2  # pixels behind one visual token
        limits = {"shortest_edge": 4 * cell, "longest_edge": 1024 * cell}
        picture, video = (f"{tokens['vision_bos']}{tokens[kind]}{tokens['vision_eos']}" for kind in ("image", "video"))
        return getattr(hf, f"{name}Processor")(
            image_processor=hf.Qwen2VLImageProcessor(patch_size=patch, size=limits),
            video_processor=hf.Qwen2VLVideoProcessor(patch_size=patch, size=limits),
            feature_extractor=hf.WhisperFeatureExtractor(
                feature_size=BANDS, chunk_length=SECONDS, sampling_rate=RATE, hop_length=HOP
            ),
            tokenizer=tokenizer,
            chat_template=template(picture, video, f"{tokens['audio_bos']}{tokens['audio']}{tokens['audio_eos']}"),
        )

    return Checkpoint(config, getattr(hf, f"{name}ThinkerForConditionalGeneration"), tokenizer, processor)

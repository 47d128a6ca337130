"""Tiny checkpoints of Qwen2-Audio, which hears and doesn't see."""

from __future__ import annotations

from collections.abc import Sequence

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import HEADS, Checkpoint, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer

SECONDS, BANDS, RATE, HOP = 4, 80, 16_000, 160
"""Longest sound that it hears (30 s in Qwen2-Audio), mel bands (128), samples per second, samples between two frames."""


def qwen2_audio(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """25 tokens for each second of sound."""
    named = {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
    tokenizer = make_tokenizer(words, named=named)
    config = hf.Qwen2AudioConfig(
        text_config=text("qwen2", tokenizer, hidden, layers),
        audio_config={
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": BANDS,
            "encoder_layers": layers,
            "encoder_attention_heads": HEADS,
            "encoder_ffn_dim": 2 * hidden,
            "d_model": hidden,
            "max_source_positions": SECONDS * RATE // HOP // 2,
        },
        **ids(tokenizer, audio_token_index=named["audio_token"]),
    )

    def processor() -> hf.Qwen2AudioProcessor:
        ears = hf.WhisperFeatureExtractor(feature_size=BANDS, chunk_length=SECONDS, sampling_rate=RATE, hop_length=HOP)
        made = hf.Qwen2AudioProcessor(ears, tokenizer)
        made.chat_template = made.default_chat_template  # transformers has it as in the published checkpoint
        return made

    return Checkpoint(config, hf.Qwen2AudioForConditionalGeneration, tokenizer, processor)

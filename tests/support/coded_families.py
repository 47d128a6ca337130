"""Tiny checkpoints of families whose pictures become ids of their vocabulary, so that they have no projector."""

from __future__ import annotations

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

CODES = {"embed_dim": 8, "latent_channels": 8, "base_channels": 32, "num_res_blocks": 1}
SIDE = 16


def chameleon():
    """The model keeps its outputs from being pictures."""
    tokenizer = make_tokenizer(named={"image_token": "<image>", "boi_token": "<racm3:break>", "eoi_token": "<eoss>"})
    tokenizer.sep_token = "<|vision_pad|>"  # its processor ends each text with it
    tokenizer.add_tokens([f"IMGIMG{tens}{ones}Z" for tens in "AB" for ones in "ABCDEFGH"])  # digits, A for 0
    language = text("chameleon", tokenizer, 32, 2)
    del language["model_type"]
    codes = CODES | {"num_embeddings": 18, "channel_multiplier": [1, 1], "resolution": SIDE}
    config = hf.ChameleonConfig(**language, vq_config=codes, vocabulary_map=tokenizer.get_vocab())
    images = hf.ChameleonImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    processor = hf.ChameleonProcessor(images, tokenizer, image_seq_length=(SIDE // 2) ** 2)
    processor.chat_template = template("<image>")
    return hf.ChameleonForConditionalGeneration(config), processor


def emu3():
    """Pictures of any shape, with a token behind each row."""
    named = {"image_token": "<image>", "boi_token": "<|image start|>", "eoi_token": "<|image end|>"}
    named |= {"image_wrapper_token": "<|image token|>", "eof_token": "<|extra_201|>"}
    tokenizer = make_tokenizer(named=named, special=["<|extra_200|>"])
    tokenizer.bos_token = "<|vision_pad|>"
    tokenizer.add_tokens([f"<|visual token {i:06d}|>" for i in range(32)], special_tokens=True)
    codes = CODES | {"embed_dim": 4, "latent_channels": 4, "codebook_size": 32, "channel_multiplier": [1, 1, 1, 1]}
    codes |= {"hidden_size": 32, "temporal_downsample_factor": 1}
    language = text("emu3_text_model", tokenizer, 32, 2) | {"bos_token_id": tokenizer.bos_token_id}
    config = hf.Emu3Config(text_config=language, vq_config=codes, vocabulary_map=tokenizer.get_vocab())
    images = hf.Emu3ImageProcessor(min_pixels=32 * 32, max_pixels=64 * 64)
    return hf.Emu3ForConditionalGeneration(config), hf.Emu3Processor(images, tokenizer, chat_template=template("<image>"))


def apertus1p5(codes=64, sounds=16, pruned=False):
    """As published checkpoints may, it has outputs for text alone, if it is pruned."""
    named = {"image_token": "<|image|>", "boi_token": "<|img_start|>", "eoi_token": "<|img_end|>"}
    named |= {"image_wrapper_token": "<|img_token_start|>", "eol_token": "<|img_end_of_row|>", "audio_token": "<|audio|>"}
    tokenizer = make_tokenizer(named=named | {"boa_token": "<|audio_start|>", "eoa_token": "<|audio_end|>"})
    kept = len(tokenizer)
    tokenizer.add_tokens([f"<|visual token {i}|>" for i in range(codes)], special_tokens=True)
    tokenizer.add_tokens([f"<|audio token {i}|>" for i in range(sounds)], special_tokens=True)
    size = {"vocab_size": len(tokenizer), "output_vocab_size": kept if pruned else None}
    audio = {"model_type": "wavtokenizer_encoder", "num_filters": 4, "hidden_size": 64, "codebook_dim": 64, "num_lstm_layers": 1}
    config = hf.Apertus1p5Config(
        text_config=text("apertus1p5_text", tokenizer, 32, 2) | size,
        vision_config=CODES | {"codebook_size": codes, "channel_multiplier": [1, 1, 1], "attn_resolutions": []},
        audio_config=audio | {"codebook_size": sounds},
        image_token_offset=kept,
        audio_token_offset=kept + codes,
        **ids(tokenizer, image_token_id="<|image|>", audio_token_id="<|audio|>"),
    )
    images = hf.Apertus1p5ImageProcessor(size={"min_pixels": 16 * 16, "max_pixels": 32 * 32}, spatial_factor=4)
    parts = (images, hf.WavTokenizerFeatureExtractor(), tokenizer)
    processor = hf.Apertus1p5Processor(*parts, chat_template=template("<|image|>"))
    return hf.Apertus1p5ForConditionalGeneration(config), processor

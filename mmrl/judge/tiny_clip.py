"""A small but real CLIP: built from its config, random weights, its own tokenizer and image processor; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch

START, END = "<|startoftext|>", "<|endoftext|>"
SIDE, PATCH, WIDTH, LENGTH = 32, 8, 32, 77
"""Pixels of a picture and of a patch; width of both towers; the longest text, in tokens."""


def build(seed: int = 0) -> tuple[Any, Any]:
    """A `CLIPModel` and its `CLIPProcessor`. Same seed, same weights."""

    import transformers

    tokenizer = byte_tokenizer(LENGTH)
    shape: dict[str, Any] = dict(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=2)
    ends = dict(bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id)
    config = transformers.CLIPConfig(
        text_config=dict(vocab_size=len(tokenizer), max_position_embeddings=LENGTH, projection_dim=WIDTH, **shape, **ends),
        vision_config=dict(image_size=SIDE, patch_size=PATCH, projection_dim=WIDTH, **shape),
        projection_dim=WIDTH,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.CLIPModel(config)
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, do_resize=True, do_center_crop=True
    )
    return model.eval(), transformers.CLIPProcessor(image_processor=images, tokenizer=tokenizer)


def byte_tokenizer(length: int) -> Any:
    """Bytes as tokens, a start and an end, also between the texts of a pair. length: the longest text, in tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), START, END]
    ids = {name: i for i, name in enumerate(names)}
    bpe = Tokenizer(models.BPE(vocab=ids, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", pair=f"{START} $A {END} $B:1 {END}:1", special_tokens=[(START, ids[START]), (END, ids[END])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=START, eos_token=END, pad_token=END, unk_token=END, model_max_length=length
    )


def save(folder: str, seed: int = 0) -> None:
    """Write a checkpoint that transformers loads like any other."""
    model, processor = build(seed)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)

"""A small but real classifier of pairs of texts: random weights and its own tokenizer; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmrl.judge.tiny_clip import byte_tokenizer

WIDTH, LENGTH = 32, 512
"""Width of the model, and the longest pair in tokens."""


def build(labels: Sequence[str] = ("output",), seed: int = 0) -> tuple[Any, Any]:
    """A `BertForSequenceClassification` with these classes, and its tokenizer. Same seed, same weights."""
    import transformers

    tokenizer = byte_tokenizer(LENGTH)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(labels)),
        initializer_range=0.2,  # wide enough that what is read moves the output
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.BertForSequenceClassification(config)
    return model.eval(), tokenizer


def save(folder: str, labels: Sequence[str] = ("output",), seed: int = 0) -> None:
    """Write a checkpoint that transformers loads like any other."""
    model, tokenizer = build(labels, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

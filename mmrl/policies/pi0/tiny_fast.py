"""The tokenizers of a tiny pi0-FAST: words whose vocabulary has room for actions at its end, as PaliGemma's, and a FAST."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np

from mmrl.policies.pi0.fast_tokens import FastTokenizer, fit_fast
from mmrl.policies.vlm.tiny.tokens import CORPUS, LEARNED, SPECIAL

SKIPPED = 128
"""Ids at the end of the vocabulary that stand for nothing, as in openpi."""
ACTIONS = 320
"""Tokens of the FAST."""
SAID = ["Task: pick up the red cube, State: 128 0 255 64 17 99;\n", "Action: "]


@cache
def fast_actions() -> FastTokenizer:
    """Fitted to smooth random courses of numbers in [-1, 1]."""
    draw = np.random.default_rng(0)
    times = np.linspace(0, 1, 8)[:, None]
    courses = [np.sin(draw.uniform(0, 7, 4) + draw.uniform(0, 3, 4) * times) for _ in range(200)]
    return fit_fast(courses, scale=10.0, lowest=-100, size=ACTIONS)


def fast_words() -> Any:
    """A byte-level BPE tokenizer whose last `ACTIONS` + `SKIPPED` ids are of no text."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_learned()),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


@cache
def _learned() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = list(SPECIAL)
    trainer = trainers.BpeTrainer(vocab_size=LEARNED, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator((SAID * 9 + CORPUS) * 20, trainer)
    table = json.loads(bpe.to_str())
    words = table["model"]["vocab"]
    for number in range(ACTIONS + SKIPPED):
        words[f"<action{number}>"] = len(words)
    return json.dumps(table)

"""A tiny OpenVLA with random weights: towers, projector, Llama, weight names and files are like the real one's."""

from __future__ import annotations

import json
from typing import Any

import torch

PATCH, SIZE = 14, 56
BINS, SPARE = 256, 64
"""Number of action ids, and of embedding rows without a token."""
WORDS = [
    "In: What action should the robot take to pick up the red cube?\nOut:",
    "push put on stack reach ball cylinder box plate blue",
]
MEANS, STDS = [[0.484375, 0.455078125, 0.40625], [0.5] * 3], [[0.228515625, 0.2236328125, 0.224609375], [0.5] * 3]


def config_of(hidden: int, layers: int) -> Any:
    from mmrl.policies.openvla.model import OpenVLAConfig

    tokenizer = tokenizer_of()
    heads = 4
    towers = [
        {"width": hidden, "depth": layers + 1, "heads": heads, "inner": 2 * hidden, "registers": 4},
        {"width": hidden + 32, "depth": layers + 1, "heads": heads, "inner": 2 * hidden + 48},
    ]
    return OpenVLAConfig(
        text_config={
            "vocab_size": len(tokenizer) - 1 + SPARE,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "pad_token_id": tokenizer.pad_token_id,
        },
        image_sizes=[SIZE, SIZE],
        towers=towers,
        pad_token_id=tokenizer.pad_token_id,
        arch_specifier="no-align+fused-gelu-mlp",
        image_resize_strategy="resize-naive",
        vision_backbone_id="dinosiglip-vit-so-224px",
    )


def build(hidden: int, layers: int, seed: int, dtype: torch.dtype, attention: str) -> tuple[Any, Any]:
    """A model and its processor. Same arguments, same weights."""
    from mmrl.policies.openvla.model import OpenVLA
    from mmrl.policies.openvla.reading import Pictures, make_processor

    config = config_of(hidden, layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = OpenVLA._from_config(config, attn_implementation=attention)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    tokenizer = tokenizer_of()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    settings = {
        "image_processor_type": "PrismaticImageProcessor",
        "image_resize_strategy": "resize-naive",
        "input_sizes": [[3, SIZE, SIZE]] * 2,
        "interpolations": ["bicubic"] * 2,
        "means": MEANS,
        "stds": STDS,
        "tvf_normalize_params": [{"mean": m, "std": s, "inplace": False} for m, s in zip(MEANS, STDS, strict=True)],
        "use_fused_vision_backbone": True,
    }
    return model, make_processor("tiny:openvla", tokenizer, Pictures(settings), config)


def tokenizer_of() -> Any:
    """A tokenizer like Llama's: pieces with a sign for spaces, bytes for all else, a padding token behind the vocabulary. The
    last ids, which stand for actions, belong to tokens that occur in no text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(WORDS * 20, trainers.BpeTrainer(vocab_size=160, initial_alphabet=["▁"], show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    special = ["<unk>", "<s>", "</s>"]
    pieces = [*special, *(f"<0x{b:02X}>" for b in range(256)), *learned["vocab"], *(f"<rare{i}>" for i in range(BINS))]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(pair) for pair in learned["merges"]]
    bpe = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    bpe.normalizer = spaces
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*special, "<PAD>")])
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", bpe.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<PAD>", padding_side="right"
    )

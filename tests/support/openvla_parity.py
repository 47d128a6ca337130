"""What both sides of the comparison with OpenVLA's published code begin with: the shapes of a small model, its weights, its
tokenizer, a prompt, two pictures and a robot's state. It needs numpy, torch, Pillow and tokenizers alone, in any version, so that
the environment of the published code can import it too.

Weights and pixels come from numpy's `RandomState`, whose numbers never change.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

SIZE, PATCH, DIMS, CHUNK, STATE = 56, 14, 7, 8, 8
"""Pixels of a picture and of a patch; numbers of an action, actions of a chunk and numbers of a state: OFT's for LIBERO."""
EMPTY, WORDS = 29871, 32000
"""Llama's id of a space, which the published code names, and its number of tokens."""
TEXT = "In: What action should the robot take to pick up the red cube?\nOut:"
KEY = "libero_spatial_no_noops"
LLAMA = {
    **{"vocab_size": WORDS + 64, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "pad_token_id": WORDS},
}
TOWERS = [{"width": 32, "depth": 3, "heads": 4, "inner": 64}, {"width": 48, "depth": 3, "heads": 4, "inner": 144}]
"""Shapes of DINOv2 and SigLIP; the real ones are in `mmrl.policies.openvla.model`."""
MEANS, STDS = [[0.485, 0.456, 0.406], [0.5] * 3], [[0.229, 0.224, 0.225], [0.5] * 3]
COLUMNS = np.arange(WORDS - 256, WORDS + 64, 5)
"""The part of the vocabulary whose logits are kept."""


def config() -> dict[str, Any]:
    """The fields of config.json in which this model differs from openvla-7b."""
    return {
        **{"vision_backbone_id": "dinosiglip-vit-so-224px", "llm_backbone_id": "llama2-7b-pure", "text_config": LLAMA},
        **{"arch_specifier": "no-align+fused-gelu-mlp", "image_sizes": [SIZE, SIZE], "image_resize_strategy": "resize-naive"},
        **{"pad_token_id": WORDS, "norm_stats": statistics()},
    }


def statistics() -> dict[str, Any]:
    """Statistics of one data set, like those of LIBERO."""
    mask = [True] * 6 + [False]
    low, high = -0.01 * np.arange(3, 10), 0.01 * np.arange(5, 12)
    low[-1], high[-1] = 0.0, 1.0
    ends = {"q01": low, "q99": high, "min": 2 * low, "max": 2 * high}
    state = {"q01": -0.5 - 0.1 * np.arange(STATE), "q99": 0.3 + 0.2 * np.arange(STATE)}
    state |= {"min": 2 * state["q01"], "max": 2 * state["q99"]}
    plain = {name: value.round(6).tolist() for name, value in ends.items()}
    return {KEY: {"action": {**plain, "mask": mask}, "proprio": {name: v.round(6).tolist() for name, v in state.items()}}}


@torch.no_grad()
def fill(name: str, tensor: torch.Tensor, scale: float = 0.25) -> None:
    """Weights that depend on their name alone, far from a scale of 1 and a bias of 0."""
    noise = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF).standard_normal(tuple(tensor.shape))
    centre = 1.0 if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "layernorm.weight", "scale_factor")) else 0.0
    if name.endswith("lm_head.weight"):  # so that the likeliest tokens are actions, as in a trained model
        noise[WORDS - 256 : WORDS] *= 4
    tensor.copy_(torch.from_numpy(centre + scale * noise))


def picture(which: int, height: int = 90, width: int = 120) -> Image.Image:
    """A smooth picture with some noise, by default larger than the model's."""
    random = np.random.RandomState(which)
    y, x = np.mgrid[0:height, 0:width] / width
    waves = np.stack([np.sin((3 + c) * x + which) + np.cos((4 - c) * y * (1 + which)) for c in range(3)], 2)
    return Image.fromarray((127 + 50 * waves + random.uniform(-20, 20, waves.shape)).clip(0, 255).astype(np.uint8))


def state() -> np.ndarray:
    """The robot's own numbers, not normalised; two of them lie beyond the quantiles."""
    return np.linspace(-0.9, 1.1, STATE)


def tokenizer() -> Tokenizer:
    """One like Llama's with as many tokens, in which the space has the id that it has there."""
    known = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    known += sorted({c for c in TEXT.replace(" ", "▁") if c not in "▁\n"})
    known += ["▁t", "▁to", "▁the", "▁r", "▁ro", "▁rob", "bo", "ot", "th", "ro"]
    ids = {piece: i for i, piece in enumerate(known)}
    ids |= {f"<rare{i}>": i for i in range(len(known), WORDS) if i != EMPTY} | {"▁": EMPTY}
    merges = [("▁", "t"), ("▁t", "o"), ("▁", "r"), ("▁r", "o"), ("o", "t"), ("▁ro", "b")]
    merges = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
    bpe = Tokenizer(models.BPE(ids, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>", "<PAD>")])
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return bpe

"""Two parts of Qwen vision towers, computed faster with the same result.

transformers' vision towers loop over images (and windows) unless a variable-length kernel is set. The attention here needs no
extra package: a GPU has a kernel for all sequences, see `varlen`; elsewhere, sequences of equal length are stacked and go through
one scaled-dot-product call. Patches are embedded by a convolution whose stride is its kernel, which is a matrix product, and that
is several times faster.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from mmrl.policies.vlm.varlen import VARLEN

NAME = "mmrl_flash_stacked"
"""transformers takes names with "flash" in them for variable-length kernels, and passes the sequence boundaries."""


def stacked_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None = None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query, key, value: [1, heads, S, width]; cu_seq_lens_q: [n + 1] boundaries. Returns ([1, S, heads, width], None)."""
    heads, total, width = query.shape[1:]
    lengths = (cu_seq_lens_q[1:] - cu_seq_lens_q[:-1]).tolist()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)

    if VARLEN.usable(query, dropout):
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        found = VARLEN(q, k, v, tuple(lengths), scaling)
        if found is not None:
            return found[None], None
    if len(set(lengths)) == 1:
        q, k, v = (x.view(heads, -1, lengths[0], width).transpose(0, 1) for x in (query[0], key[0], value[0]))
        return attend(q, k, v).transpose(1, 2).reshape(1, total, heads, width), None

    output = query.new_empty(total, heads, width)
    starts = cu_seq_lens_q[:-1].tolist()
    for length in sorted(set(lengths)):
        rows = torch.tensor([s for s, n in zip(starts, lengths, strict=True) if n == length], device=query.device)
        index = rows[:, None] + torch.arange(length, device=query.device)  # [n, length]
        q, k, v = (x[0][:, index].transpose(0, 1) for x in (query, key, value))
        output[index] = attend(q, k, v).transpose(1, 2)
    return output[None], None


def embed_patches(embed: Any, pixels: torch.Tensor) -> torch.Tensor:
    """What the tower's `patch_embed` computes. pixels: [patches, values of a patch]. Returns [patches, width]."""
    weight = embed.proj.weight.flatten(1)
    return linear(pixels.to(weight.dtype), weight, embed.proj.bias)


def speed_up(vision_tower: Any) -> None:
    """Make a Qwen vision tower run all images of a batch together, and embed patches by a matrix product."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, stacked_attention)
    vision_tower.config._attn_implementation = NAME
    vision_tower.patch_embed.forward = partial(embed_patches, vision_tower.patch_embed)

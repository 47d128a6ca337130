"""Attention over many short sequences at once, for vision towers.

transformers' vision towers loop over images (and windows) unless a variable-length kernel is set. This one needs no extra
package: sequences of equal length are stacked and go through one scaled-dot-product call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

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


def use_stacked_attention(vision_tower: Any) -> None:
    """Make a Qwen vision tower run all images of a batch together."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, stacked_attention)
    vision_tower.config._attn_implementation = NAME

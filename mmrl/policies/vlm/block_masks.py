"""The blocks of an attention mask that hold something, found without the mask itself.

FlexAttention (Dong et al., Flex Attention, section 3) computes the blocks of a `BlockMask` and skips all others. torch's own
`create_block_mask` evaluates the mask of all pairs of tokens at once. Here it is evaluated for a few blocks of queries at a time,
on the device and without waiting for it.

B rows, Q queries, K keys, blocks of `size` tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad
from transformers.masking_utils import sdpa_mask

Rule = Callable[[Any, Any, Any, Any], Any]
BLOCK = 128
"""Tokens of a block; FlexAttention's kernels divide it into tiles of their own."""
AT_ONCE = 2**24
"""Pairs of tokens whose mask is evaluated at a time; at least a block of queries."""


def block_mask(size: int = BLOCK, **given: Any) -> BlockMask:
    """The block lists of a mask. given: arguments of a mask function, see `transformers.masking_utils.sdpa_mask`."""
    B, Q, K = given["batch_size"], given["q_length"], given["kv_length"]
    start, rows = given.get("q_offset", 0), size * max(1, AT_ONCE // (B * K * size))
    given["allow_is_causal_skip"] = given["allow_is_bidirectional_skip"] = False
    counts = []
    for first in range(0, Q, rows):
        seen = sdpa_mask(**given | {"q_offset": start + first, "q_length": min(rows, Q - first)})
        assert seen is not None
        seen = pad(seen[:, 0], (0, -K % size, 0, -seen.shape[2] % size))
        counts.append(seen.view(B, seen.shape[1] // size, size, -1, size).sum((2, 4), dtype=torch.int32))
    count = torch.cat(counts, 1)[:, None]
    return BlockMask.from_kv_blocks(
        *_listed((count > 0) & (count < size**2)),
        *_listed(count == size**2),
        BLOCK_SIZE=size,
        mask_mod=_rule(**given),
        seq_lengths=(Q, K),
    )


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bool [B, 1, blocks of queries, blocks of keys] -> (number in each row, their indices first in each row), int32."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _rule(
    mask_function: Rule, attention_mask: Any = None, q_offset: Any = 0, kv_offset: int = 0, use_vmap: bool = False, **given: Any
) -> Rule:
    """Whether head h of query q sees key k, both counted from the first of the call."""
    if attention_mask is not None:
        padding = pad(attention_mask, (0, max(0, given["kv_length"] + kv_offset - attention_mask.shape[-1])))

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        return mask_function(b, h, q + q_offset, k + kv_offset)

    def seen_and_real(b: Any, h: Any, q: Any, k: Any) -> Any:
        return mask_function(b, h, q + q_offset, k + kv_offset) & padding[b, k + kv_offset]

    found = seen if attention_mask is None else seen_and_real
    found.use_vmap = use_vmap  # type: ignore[attr-defined]
    return found


def seen(blocks: BlockMask, row: int, queries_Q: torch.Tensor, keys_K: torch.Tensor) -> torch.Tensor:
    """bool [Q, K]: which of these keys each of these queries of a row sees, without looking at the lists."""
    rule, zero = blocks.mask_mod, queries_Q.new_zeros(())
    if getattr(rule, "use_vmap", False):  # a function of single numbers
        rule = torch.vmap(torch.vmap(rule, (None, None, None, 0)), (None, None, 0, None))
        with TransformGetItemToIndex():
            return rule(zero + row, zero, queries_Q, keys_K)
    return rule(zero + row, zero, queries_Q[:, None], keys_K).expand(len(queries_Q), len(keys_K))

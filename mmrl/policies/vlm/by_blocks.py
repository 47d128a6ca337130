"""Attention by the block lists of a mask, in torch's own operations: exact on every device, with gradients.

Each block of queries meets the blocks of keys that it sees and no others, so memory grows with the length of the rows and not
with its square: Rabe & Staats 2021, Self-attention does not need O(n^2) memory. The backward pass computes a block's
probabilities again from the saved log-sum-exp: Dao et al. 2022, FlashAttention, algorithm 4.

B rows, H heads of queries, N heads of keys, Q queries, K keys, width D; M keys that a block of queries sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import BlockMask

from mmrl.policies.vlm.block_masks import seen


def attention_by_blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: BlockMask, scale: float, softcap: float | None = None
) -> torch.Tensor:
    """[B, H, Q, D] of query [B, H, Q, D], key and value [B, N, K, D]. softcap: see Gemma Team 2024, Gemma 2, section 2. Scores
    and sums are at least float32. Queries that see nothing get zeros."""
    found: torch.Tensor = _ByBlocks.apply(query, key, value, blocks, scale, softcap)
    return found


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block of queries of one row, and what it sees."""

    row: int
    queries: slice
    keys: slice | torch.Tensor
    """A slice if they lie side by side, else int64 [M]."""
    hidden: torch.Tensor | None
    """bool [block, M]: pairs that the mask forbids; None if there are none."""


class _ByBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        blocks: BlockMask,
        scale: float,
        softcap: float | None,
    ) -> torch.Tensor:
        output = query.new_zeros(*query.shape[:3], value.shape[3])
        sums_BHQ = query.new_zeros(query.shape[:3], dtype=_wide(query))
        for piece in _pieces(blocks, len(query), query.device):
            b, rows, keys = piece.row, piece.queries, piece.keys
            scores, _ = _scores(query, key, piece, scale, softcap)
            top = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)  # a query may see nothing
            total = scores.sub_(top).exp_().sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)
            found = (scores @ value[b][:, keys].to(scores.dtype)).div_(total)
            output[b][:, rows] = found.reshape(query.shape[1], -1, value.shape[3]).to(output.dtype)
            sums_BHQ[b][:, rows] = total.log_().add_(top).reshape(query.shape[1], -1)
        ctx.save_for_backward(query, key, value, output, sums_BHQ)
        ctx.blocks, ctx.scale, ctx.softcap = blocks, scale, softcap
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, sums_BHQ = ctx.saved_tensors
        wide = _wide(query)
        d_query, d_key, d_value = (torch.zeros_like(x, dtype=wide) for x in (query, key, value))
        for piece in _pieces(ctx.blocks, len(query), query.device):
            b, rows, keys = piece.row, piece.queries, piece.keys
            scores, bend = _scores(query, key, piece, ctx.scale, ctx.softcap)

            def grouped(x: torch.Tensor, b: int = b, rows: slice = rows) -> torch.Tensor:
                return x[b][:, rows].to(wide).reshape(key.shape[1], -1, *x.shape[3:])

            mine = grouped(slope)
            shares = scores.sub_(grouped(sums_BHQ)[..., None]).exp_()
            gap = (mine * grouped(output)).sum(-1, keepdim=True)
            d_scores = (mine @ value[b][:, keys].to(wide).mT).sub_(gap).mul_(shares).mul_(ctx.scale)
            if bend is not None:
                d_scores.mul_(bend)
            d_query[b][:, rows] = (d_scores @ key[b][:, keys].to(wide)).reshape(query.shape[1], -1, query.shape[3])
            for whole, part in ((d_key, d_scores.mT @ grouped(query)), (d_value, shares.mT @ mine)):
                if isinstance(keys, slice):
                    whole[b][:, keys] += part
                else:
                    whole[b].index_add_(1, keys, part)
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), None, None, None


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _scores(
    query: torch.Tensor, key: torch.Tensor, piece: _Piece, scale: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(scores [N, H // N * block, M], their derivative by the scores before the cap if there is one)."""
    wide, N = _wide(query), key.shape[1]
    q = query[piece.row][:, piece.queries].to(wide).reshape(N, -1, query.shape[3])
    found, bend = (q @ key[piece.row][:, piece.keys].to(wide).mT).mul_(scale), None
    if softcap is not None:
        bounded = found.div_(softcap).tanh_()
        bend = 1 - bounded.square()
        found = bounded.mul_(softcap)
    if piece.hidden is not None:
        found.view(query.shape[1], -1, found.shape[2]).masked_fill_(piece.hidden, -torch.inf)
    return found, bend


# -- the lists ----------------------------------------------------------------------------------------------------------------

_Seen = tuple[list[int], bool]
"""What a block of queries sees: blocks of keys in order, and whether the mask forbids some of their pairs."""
_LISTS: WeakKeyDictionary[BlockMask, list[list[_Seen]]] = WeakKeyDictionary()
"""Mask -> for each of its rows, what each block of queries sees. All layers share them."""


def _lists(blocks: BlockMask) -> list[list[_Seen]]:
    if blocks not in _LISTS:
        tensors = (blocks.kv_num_blocks, blocks.kv_indices, blocks.full_kv_num_blocks, blocks.full_kv_indices)
        rows = zip(*(one[:, 0].tolist() for one in tensors if one is not None), strict=True)
        _LISTS[blocks] = [
            [(sorted([*partial[:n], *full[:m]]), n > 0) for n, partial, m, full in zip(*row, strict=True)] for row in rows
        ]
    return _LISTS[blocks]


def _pieces(blocks: BlockMask, rows: int, device: torch.device) -> Iterator[_Piece]:
    """The blocks of queries of all rows that see something."""
    (Q, K), size, lists = blocks.seq_lengths, blocks.BLOCK_SIZE[0], _lists(blocks)
    within = torch.arange(size, device=device)
    for b in range(rows):
        for i, (columns, masked) in enumerate(lists[b if len(lists) > 1 else 0]):
            if not columns:
                continue
            queries, side_by_side = slice(i * size, min(Q, (i + 1) * size)), columns[-1] - columns[0] < len(columns)
            index = (torch.tensor(columns, device=device)[:, None] * size + within).flatten()
            if columns[-1] * size + size > K:
                index = index[: len(index) - (columns[-1] * size + size - K)]
            keys: slice | torch.Tensor = slice(columns[0] * size, columns[0] * size + len(index)) if side_by_side else index
            asked = torch.arange(queries.start, queries.stop, device=device)
            yield _Piece(b, queries, keys, ~seen(blocks, b, asked, index) if masked else None)

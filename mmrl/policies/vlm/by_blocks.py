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


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a block of queries sees: blocks of keys in order, and the mask of those that it sees in part."""

    blocks: list[int]
    partial: list[int]
    """Their indices in `blocks`."""
    hidden: torch.Tensor | None
    """bool [block, size of the partial blocks together]: pairs that the mask forbids."""


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
        B, H, Q = query.shape[:3]
        output = query.new_zeros(B, Q, H, value.shape[3]).transpose(1, 2)  # as transformers turns it without a copy
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

_SEEN: WeakKeyDictionary[BlockMask, list[list[_Seen]]] = WeakKeyDictionary()
"""Mask -> for each of its rows, what each block of queries sees. All layers share it."""


def _looked_up(blocks: BlockMask) -> list[list[_Seen]]:
    if blocks not in _SEEN:
        tensors = (blocks.kv_num_blocks, blocks.kv_indices, blocks.full_kv_num_blocks, blocks.full_kv_indices)
        rows = zip(*(one[:, 0].tolist() for one in tensors if one is not None), strict=True)
        _SEEN[blocks] = [
            [_seen(blocks, b, i, some[:n], full[:m]) for i, (n, some, m, full) in enumerate(zip(*row, strict=True))]
            for b, row in enumerate(rows)
        ]
    return _SEEN[blocks]


def _seen(blocks: BlockMask, row: int, i: int, some: list[int], full: list[int]) -> _Seen:
    """some, full: the blocks of keys that the i-th block of queries sees in part, and in full."""
    both = sorted([*some, *full])
    partial = [both.index(j) for j in sorted(some)]
    if not some:
        return _Seen(both, partial, None)
    (Q, K), size = blocks.seq_lengths, blocks.BLOCK_SIZE[0]
    keys = _index(sorted(some), size, blocks.kv_indices.device)
    queries = torch.arange(i * size, min(Q, (i + 1) * size), device=keys.device)
    return _Seen(both, partial, ~seen(blocks, row, queries, keys.clamp_max(K - 1)))


def _index(blocks: list[int], size: int, device: torch.device) -> torch.Tensor:
    return (torch.tensor(blocks, device=device)[:, None] * size + torch.arange(size, device=device)).flatten()


def _pieces(blocks: BlockMask, rows: int, device: torch.device) -> Iterator[_Piece]:
    """The blocks of queries of all rows that see something."""
    (Q, K), size, looked_up = blocks.seq_lengths, blocks.BLOCK_SIZE[0], _looked_up(blocks)
    for b in range(rows):
        for i, look in enumerate(looked_up[b if len(looked_up) > 1 else 0]):
            if not look.blocks:
                continue
            first, last = look.blocks[0], look.blocks[-1]
            M = len(look.blocks) * size - max(0, (last + 1) * size - K)  # the last block of keys may be shorter
            side_by_side = last - first < len(look.blocks)
            keys = slice(first * size, first * size + M) if side_by_side else _index(look.blocks, size, device)[:M]
            queries, hidden = slice(i * size, min(Q, (i + 1) * size)), None
            if look.hidden is not None:
                hidden = look.hidden.new_zeros(len(look.hidden), len(look.blocks), size)
                hidden[:, look.partial] = look.hidden.view(len(look.hidden), -1, size)
                hidden = hidden.flatten(1)[:, :M]
            yield _Piece(b, queries, keys, hidden)

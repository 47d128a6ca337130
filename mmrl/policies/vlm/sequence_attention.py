"""Causal attention within sequences of several lengths, whose every number is the same wherever a sequence stands in a batch.

On a GPU it is torch's kernel for such sequences, FlashAttention 2 (Dao 2023, section 3), which goes from one block of a
sequence's keys to the next: blocks that a token doesn't see add exact zeros. Kernels for single tokens divide the keys among
blocks of threads by how many rows there are, which changes the order of sums. A single token is therefore passed as several, its
heads. Elsewhere scores and sums are float64, so that after rounding to fewer bits their order doesn't show.

U queries in n sequences, H heads; keys of K heads, D wide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import attention

from mmrl.compute.flash_attention import NAME
from mmrl.policies.vlm.sequences import CachedSequences, PackedSequences, Sequences

KERNELS = torch.ops.aten
"""Where torch's kernels are. What it documents of them is `torch.nn.attention.varlen.varlen_attn`, which in early versions
doesn't know all that they do."""
MOST_WIDE = 256
"""Width of a head up to which torch has the kernel."""


def within_sequences(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sequences: Sequences, scale: float
) -> torch.Tensor:
    """[B, S, H, D] of query [B, H, S, D], key and value [B, K, ., D]; padding gets finite numbers without a meaning. Raises
    NotImplementedError for what the kernel of a GPU can't compute."""
    D = query.shape[-1]
    if value.shape[-1] != D:
        raise NotImplementedError("its keys and values have different widths")
    if query.device.type == "cuda" and (query.dtype == torch.float32 or D > MOST_WIDE or D % 8):
        raise NotImplementedError(f"torch's kernel for sequences has no heads of {D} numbers in {query.dtype}")
    if query.device.type == "cuda" and _implementation() == NAME:
        raise NotImplementedError("FlashAttention 3 takes other blocks of keys for single tokens than for several")
    if isinstance(sequences, CachedSequences):
        return _cached(query, key, value, sequences, scale, _flash_output if query.device.type == "cuda" else _exact)
    B, H, S, _ = query.shape
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    function = _Flash.apply if query.device.type == "cuda" else _gathered
    found: torch.Tensor = function(q, k, v, sequences, scale)
    return found.view(B, S, H, D)


# -- packed rows --------------------------------------------------------------------------------------------------------------


def _gathered(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sequences: PackedSequences, scale: float
) -> torch.Tensor:
    key, value = (x.index_select(0, sequences.keys_T) for x in (key, value))
    starts, used = sequences.key_ends, sequences.key_ends.diff()
    return _exact(query, key, value, _Layout(sequences.query_ends, starts, used, sequences.longest, causal=True), scale)


class _Flash(torch.autograd.Function):
    """Keys and values of a prompt are gathered for each of its completions, again in the backward pass, and their gradients
    added up in float32."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sequences: PackedSequences, scale: float
    ) -> torch.Tensor:
        keys, values = (x.index_select(0, sequences.keys_T) for x in (key, value))
        layout = _Layout(sequences.query_ends, sequences.key_ends, None, sequences.longest, causal=True)
        output, sums, state, unused = _flash(query, keys, values, layout, scale)
        ctx.save_for_backward(query, key, value, output, sums, state, unused)
        ctx.sequences, ctx.scale = sequences, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, sums, state, unused = ctx.saved_tensors
        its: PackedSequences = ctx.sequences
        gathered = [x.index_select(0, its.keys_T) for x in (key, value)]
        made = (query, *gathered, output, sums, its.query_ends, its.key_ends, *its.longest, 0.0, True, state, unused)
        d_query, *d_gathered = KERNELS._flash_attention_backward(slopes[0].contiguous(), *made, scale=ctx.scale)
        d_key, d_value = (
            torch.zeros_like(x, dtype=torch.float32).index_add_(0, its.keys_T, d.float()).to(x.dtype)
            for x, d in zip((key, value), d_gathered, strict=True)
        )
        return d_query, d_key, d_value, None, None


# -- rows of a cache ----------------------------------------------------------------------------------------------------------


def _cached(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: CachedSequences,
    scale: float,
    kernel: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Each head of keys is a row of its own, so that keys are read where they are in the cache."""
    N, H, T, D = query.shape
    K = key.shape[1]
    rows, shared = N * K, H // K
    if T == 1:
        queries, each = query.reshape(rows * shared, 1, D), shared
    else:
        queries, each = query.reshape(N, K, shared, T, D).transpose(2, 3).reshape(rows * T, shared, D), T
    (keys, room), (values, _) = _flat(key), _flat(value)
    first_R = torch.arange(rows, dtype=torch.int32, device=query.device)
    start_R, used_R = (x.repeat_interleave(K) for x in (sequences.start_N, sequences.used_N))
    if sequences.padded:  # what stands before a row's tokens is a sequence of its own
        ends = torch.stack([first_R * each, first_R * each + start_R], 1).flatten()
        starts = torch.stack([first_R * room, first_R * room + start_R], 1).flatten()
        used = torch.stack([start_R, used_R], 1).flatten()
    else:
        ends, starts, used = first_R * each, first_R * room + start_R, used_R
    over = first_R[-1:] + 1
    ends, starts = torch.cat([ends, over * each]), torch.cat([starts, over * room])
    layout = _Layout(ends, starts, used, (each, key.shape[2]), causal=T > 1)
    output = kernel(queries, keys, values, layout, scale)
    return output.view(N, K, T, shared, D).transpose(1, 2).reshape(N, T, H, D)


def _flat(states: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(the tokens [N * K * R, 1, D] of all rows and heads of [N, K, S, D], R): without a copy where R is a cache's room."""
    N, K, S, D = states.shape
    room = states.stride(1) // D
    if states.stride() != (K * room * D, room * D, D, 1) or room < S:
        states, room = states.contiguous(), S
    rows = N * K
    size = ((rows - 1) * room + S, 1, D)  # behind the last row's tokens there may be no memory
    return states.as_strided(size, (D, D, 1), states.storage_offset()), room


# -- kernels ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layout:
    query_ends: torch.Tensor
    """int32 [n + 1]."""
    key_starts: torch.Tensor
    """int32 [n + 1], the last of them behind all keys."""
    used: torch.Tensor | None
    """int32 [n]: the sequences' keys; None: up to the next one's."""
    longest: tuple[int, int]
    causal: bool
    """A sequence's queries are its last tokens, and see no later key; else all see all of them."""


def _implementation() -> str | None:
    """What has taken the kernels' place in this process; None: nothing, or this torch has no such switch."""
    return attention.current_flash_attention_impl() if hasattr(attention, "current_flash_attention_impl") else None


def _flash_output(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: _Layout, scale: float) -> torch.Tensor:
    return _flash(query, key, value, layout, scale)[0]


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: _Layout, scale: float
) -> tuple[torch.Tensor, ...]:
    """(output, log-sum-exps, and two tensors that the backward pass is given)."""
    found: tuple[torch.Tensor, ...] = KERNELS._flash_attention_forward(
        query,
        key,
        value,
        layout.query_ends,
        layout.key_starts,
        *layout.longest,
        0.0,
        layout.causal,
        False,
        scale=scale,
        seqused_k=layout.used,
    )
    return found[:4]


def _exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: _Layout, scale: float) -> torch.Tensor:
    """[U, H, D], with gradients."""
    repeats, ends = query.shape[1] // key.shape[1], layout.query_ends.tolist()
    assert layout.used is not None
    found = []
    for begin, end, start, used in zip(ends, ends[1:], layout.key_starts.tolist(), layout.used.tolist(), strict=False):
        q, k, v = (x.double().transpose(0, 1) for x in (query[begin:end], key[start : start + used], value[start : start + used]))
        k, v = (x.repeat_interleave(repeats, 0) for x in (k, v))
        scores = (q @ k.mT) * scale
        if layout.causal:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(used - (end - begin) + 1), -torch.inf)
        found.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(found).to(query.dtype)

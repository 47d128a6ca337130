"""The sequences that attention is computed within, in the place of a mask: each completion with its prompt, as if it were alone.

A packed row `[prompt][completion 1]..[completion G]` has a sequence for its prompt and one for each completion, whose keys are
the prompt's and its own; a row of a cache has one, behind its padding. The tokens of a sequence see those before them. So a
token meets the same keys in the same order wherever it stands, which `batch_invariant` needs.

B rows of S tokens; N rows of a cache with room for R tokens, T of them new, K heads of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from transformers.masking_utils import causal_mask_function

from mmrl.api.transfer import upload


@dataclass(frozen=True, eq=False)
class PackedSequences:
    """Of packed rows. All indices are of flat rows [B * S]."""

    keys_T: torch.Tensor
    """int64: the keys of each sequence, one behind the other."""
    query_ends: torch.Tensor
    """int32 [n + 1]: where the queries of each sequence begin and the last end; padding is a sequence too."""
    key_ends: torch.Tensor
    """int32 [n + 1]: the same in `keys_T`."""
    longest: tuple[int, int]
    """Most queries and most keys of a sequence."""

    @staticmethod
    def of(segment_BS: torch.Tensor) -> PackedSequences:
        """segment_BS: see `PackedRows`. It waits for the device."""
        S, keys, lengths, widths = segment_BS.shape[1], list[int](), list[int](), list[int]()
        for b, row in enumerate(segment_BS.tolist()):
            prompt, start = range(b * S, b * S + row.count(0)), b * S
            for segment in dict.fromkeys(row):
                own = range(start, start := start + row.count(segment))
                seen = [*prompt, *own] if segment > 0 else [*own]
                keys += seen
                lengths.append(len(own))
                widths.append(len(seen))
        ends = {"query_ends": [0, *accumulate(lengths)], "key_ends": [0, *accumulate(widths)]}
        made = {name: torch.tensor(x, dtype=torch.int32) for name, x in ends.items()}
        there = upload({"keys_T": torch.tensor(keys), **made}, segment_BS.device)
        return PackedSequences(**there, longest=(max(lengths), max(widths)))


@dataclass(frozen=True, eq=False)
class CachedSequences:
    """Of rows whose keys are in a cache, or are all of a pass. Nothing waits for the device."""

    start_N: torch.Tensor
    """int32: padding on the left."""
    used_N: torch.Tensor
    """int32: keys of a sequence."""
    padded: bool
    """The queries have the padding, too."""

    @staticmethod
    def of(given: Mapping[str, Any]) -> CachedSequences:
        N, Q, device = given["batch_size"], given["q_length"], torch.device(given["device"])
        offset, real = given.get("q_offset", 0), given.get("attention_mask")
        start_N = torch.zeros(N, dtype=torch.int32, device=device)
        if real is not None:
            start_N = (real == 0).sum(1, dtype=torch.int32)
        first = isinstance(offset, int) and offset == 0
        return CachedSequences(start_N, (offset + Q - start_N).int(), padded=first and real is not None)


Sequences = PackedSequences | CachedSequences


def cached_sequences(given: Mapping[str, Any]) -> CachedSequences:
    """In the place of a mask. given: the arguments of a mask function, see `transformers.masking_utils.sdpa_mask`."""
    refuse_masks(given)
    return CachedSequences.of(given)


def refuse_masks(given: Mapping[str, Any]) -> None:
    """Raise NotImplementedError for a mask that is more than causal."""
    if given.get("local_size") is not None:
        raise NotImplementedError("its attention has windows")
    if given["mask_function"] is not causal_mask_function:
        raise NotImplementedError("its mask is more than causal")

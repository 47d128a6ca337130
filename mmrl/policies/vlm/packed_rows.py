"""Rows that hold a prompt once and several completions of it, for any transformers model.

A row is `[prompt][completion 1]..[completion G]`. A model builds its own attention masks (causal, sliding windows, chunks,
pictures that see themselves) from the index of each token. Within `packed_rows` these masks are computed from the index that a
token would have in a row of its own, `[prompt][completion]`, and completions don't see each other. So the model's own rules hold,
whatever they are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers.masking_utils import sdpa_mask

from mmrl.api.transfer import upload
from mmrl.policies.vlm.sequences import PackedSequences, refuse_masks

ALIGNED = 16
"""Rows of a mask begin at multiples of this many numbers: torch's attention on GPUs copies masks whose rows don't."""


@dataclass(frozen=True, eq=False)
class PackedRows:
    """The layout of a batch of rows. B rows of S tokens, N completions of at most C tokens, prompts of at most P tokens."""

    segment_BS: torch.Tensor
    """int64: 0 prompt, 1..G the completion a token belongs to, -1 padding on the right."""
    config: type
    """Class of the language model's configuration; masks of other models, such as a vision tower, are left alone."""

    @functools.cached_property
    def own_index_BS(self) -> torch.Tensor:
        """int64: the index of each token in a row `[prompt][completion]` of its own."""
        S = self.segment_BS.shape[1]
        places_S = torch.arange(S, device=self.segment_BS.device)
        new_BS = torch.ones_like(self.segment_BS, dtype=torch.bool)
        new_BS[:, 1:] = self.segment_BS[:, 1:] != self.segment_BS[:, :-1]
        start_BS = torch.where(new_BS, places_S, 0).cummax(1).values
        prompt_B1 = (self.segment_BS == 0).sum(1, keepdim=True)
        return places_S - start_BS + torch.where(self.segment_BS > 0, prompt_B1, 0)

    def allowed(self, b: Any, q: Any, k: Any) -> Any:
        """Whether token q of row b may see token k: a token sees its prompt and its own completion, and padding sees itself, so
        that no row of the softmax is empty."""
        own, other = self.segment_BS[b, q], self.segment_BS[b, k]
        return (own == other) & (own >= 0) | (other == 0) & (own > 0) | (q == k)

    def rule(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """A model's own rule of a mask, asked about the index of tokens in rows of their own."""
        index_BS = self.own_index_BS

        def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
            return self.allowed(b, q, k) & own(b, h, index_BS[b, q], index_BS[b, k])

        return seen

    @functools.cached_property
    def gathers(self) -> Gathers:
        return Gathers.of(self.segment_BS)

    @functools.cached_property
    def sequences(self) -> PackedSequences:
        return PackedSequences.of(self.segment_BS)


@dataclass(frozen=True, eq=False)
class Gathers:
    """Where the tokens of prompts and of completions are in the flat rows [B * S], for modules that run them apart."""

    prompt_BP: torch.Tensor
    """int64: padded on the left with an index of any token."""
    real_BP: torch.Tensor
    """bool: False for padding."""
    completion_NC: torch.Tensor
    """int64: padded on the right."""
    valid_NC: torch.Tensor
    owner_N: torch.Tensor
    """int64: row of each completion."""

    @staticmethod
    def of(segment_BS: torch.Tensor) -> Gathers:
        device, (B, S) = segment_BS.device, segment_BS.shape
        rows = segment_BS.tolist()
        prompts = [row.count(0) for row in rows]
        found: list[tuple[int, int, int]] = []  # row, start, length of each completion
        for b, row in enumerate(rows):
            start = prompts[b]
            for g in range(1, max(row, default=0) + 1):
                length = row.count(g)
                found.append((b, start, length))
                start += length
        P, C = max(prompts), max((length for *_, length in found), default=0)
        places_P, places_C = torch.arange(P), torch.arange(max(C, 2))  # one token would be taken for a step of decoding
        prompt_B1, row_B1 = torch.tensor(prompts)[:, None], torch.arange(B)[:, None]
        real_BP = places_P >= P - prompt_B1
        prompt_BP = row_B1 * S + (places_P - (P - prompt_B1)).clamp_min(0)
        spans_N3 = torch.tensor(found, dtype=torch.long).reshape(-1, 3)
        valid_NC = places_C < spans_N3[:, 2:]
        completion_NC = spans_N3[:, :1] * S + spans_N3[:, 1:2] + torch.minimum(places_C, spans_N3[:, 2:] - 1)
        places = {"prompt_BP": prompt_BP, "real_BP": real_BP, "completion_NC": completion_NC, "valid_NC": valid_NC}
        return Gathers(**upload({**places, "owner_N": spans_N3[:, 0]}, device))


_ROWS: ContextVar[PackedRows | None] = ContextVar("rows", default=None)


def current_rows() -> PackedRows | None:
    """The layout of the forward pass that is running; None if its rows aren't packed."""
    return _ROWS.get()


@contextlib.contextmanager
def packed_rows(rows: PackedRows) -> Iterator[None]:
    """Forward passes inside are of rows with this layout."""
    _renumber_masks()
    token = _ROWS.set(rows)
    try:
        yield
    finally:
        _ROWS.reset(token)


_PADDED: ContextVar[type | None] = ContextVar("padded", default=None)
_SKIPS = {"allow_is_causal_skip", "allow_is_bidirectional_skip"}
"""Arguments of transformers' masks: whether no mask is made where nothing would be hidden."""


@contextlib.contextmanager
def padded_rows(config: type) -> Iterator[None]:
    """Forward passes inside are of rows with padding. transformers doesn't look for it in their masks, which would wait for the
    device at every token. config: see `PackedRows`."""
    _renumber_masks()
    token = _PADDED.set(config)
    try:
        yield
    finally:
        _PADDED.reset(token)


@functools.cache
def _renumber_masks() -> None:
    """Register masks that know packed rows. They are those of transformers for all other passes."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa", _mask)
    ALL_MASK_ATTENTION_FUNCTIONS.register("eager", _eager_mask)


def _mask(**given: Any) -> torch.Tensor | None:
    packed, padded = with_packed_rows(given), _PADDED.get()
    if packed is not None:
        return additive(sdpa_mask(**packed), given["dtype"])
    if padded is not None and isinstance(given.get("config"), padded):
        given |= {skip: False for skip in _SKIPS & given.keys()}
        return additive(without_empty_rows(sdpa_mask(**given), given), given["dtype"])
    made: torch.Tensor | None = sdpa_mask(**given)
    return made


def _eager_mask(**given: Any) -> torch.Tensor | None:
    """transformers' own copies a zero from the host, which no capture of a step allows."""
    seen = _mask(**given | {"allow_is_causal_skip": False})
    return seen if seen is None or seen.dtype != torch.bool else additive(seen, given.get("dtype", torch.float32))


def with_packed_rows(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of one of transformers' mask functions with the rule of the packed rows that are running; None if the pass is
    of other rows, or the mask another model's."""
    rows = _ROWS.get()
    if rows is None or not isinstance(given.get("config"), rows.config):
        return None
    S = rows.segment_BS.shape[1]  # of whole rows, also where the model is given a slice of them
    whole = {"q_length": S, "kv_length": S, "mask_function": rows.rule(given["mask_function"])}
    return {**given, **whole, "allow_is_causal_skip": False, "attention_mask": None}


def packed_sequences(given: Mapping[str, Any]) -> PackedSequences | None:
    """In the place of such a mask, what attention is computed within; None as in `with_packed_rows`. Raises NotImplementedError
    for a rule that is more than causal."""
    rows = _ROWS.get()
    if rows is None or not isinstance(given.get("config"), rows.config):
        return None
    refuse_masks(given)
    return rows.sequences


def without_empty_rows(seen: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    """A mask [B, 1, Q, K] in which padding sees itself too, if it is boolean. given: the arguments that made it. The softmax of a
    row that sees nothing has no values: a GPU's kernels give it NaN, which reaches all tokens through the next layer's values."""
    Q, K = seen.shape[-2:]
    if seen.dtype != torch.bool or Q == 1:  # a single token is no padding, and other masks hold finite numbers
        return seen
    queries_Q = torch.arange(Q, device=seen.device) + given.get("q_offset", 0)
    keys_K = torch.arange(K, device=seen.device) + given.get("kv_offset", 0)
    return seen | (queries_Q[:, None] == keys_K)


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """bool [..., S] -> 0 or the smallest number. torch would convert a boolean mask to such a copy in every layer and keep it
    until the backward pass."""
    S = allowed.shape[-1]
    room = torch.zeros(*allowed.shape[:-1], -(-S // ALIGNED) * ALIGNED, dtype=dtype, device=allowed.device)
    return room[..., :S].masked_fill_(~allowed, torch.finfo(dtype).min)

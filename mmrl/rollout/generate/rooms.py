"""A key-value cache of fixed shape: a step of decoding has the same tensors at the same addresses until the room is used up.

The next index is a number on the device, and a mask hides what isn't written yet, as in transformers' `StaticCache`. That cache
belongs to one batch; here all rooms, whatever their numbers of rows and tokens, lie in one memory, in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from mmrl.rollout.generate.cache import ROOM, ReservedLayer

ROUND = 128
"""A room's tokens are a multiple of this, so that batches of similar lengths have rooms of one shape."""
KINDS = (DynamicLayer, DynamicSlidingWindowLayer, ReservedLayer)
"""Layers whose states can be moved to a room."""


def tokens_of(length: int, more: int) -> int:
    """Tokens of a room for rows of `length` tokens of which at most `more` are to come: half as many as there are, so that the
    room grows a few times only, and no more than are left."""
    return -(-(length + min(more, max(ROOM, length // 2))) // ROUND) * ROUND


class RoomLayer(CacheLayerMixin):
    """The keys and values [N, heads, tokens, width] of one layer. Those that a window has left behind are zeros."""

    is_compileable = True  # transformers then makes a mask for single tokens too

    def __init__(self, index_1: torch.Tensor, window: bool) -> None:
        """index_1: int64 [1], where the next token is written; all layers share it."""
        super().__init__()
        self.is_initialized, self.is_sliding, self.index_1 = True, window, index_1

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the states [N, heads, 1, width] of one token; returns the whole room."""
        self.keys.index_copy_(2, self.index_1, key_states)
        self.values.index_copy_(2, self.index_1, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[-2], 0

    def get_seq_length(self) -> torch.Tensor:  # type: ignore[override]
        return self.index_1[0]

    def get_max_length(self) -> int:
        return int(self.keys.shape[-2])


class Room:
    """Place for N rows of so many tokens, and the inputs of their step."""

    def __init__(self, rows: int, tokens: int, device: torch.device) -> None:
        self.rows, self.tokens = rows, tokens
        self.cache = DynamicCache()
        made = {"dtype": torch.long, "device": device}
        self.token_N1 = torch.zeros(rows, 1, **made)  # type: ignore[call-overload]
        self.index_1 = torch.zeros(1, **made)  # type: ignore[call-overload]
        """Where the next token is written."""
        self.shift_N = torch.zeros(rows, **made)  # type: ignore[call-overload]
        """Rotary position of a token less its index."""
        self.mask_NS = torch.ones(rows, tokens, **made)  # type: ignore[call-overload]
        """0 for padding on the left. What isn't written yet lies behind the token and needs no 0."""

    def positions(self, axes: int) -> torch.Tensor:
        """Of the next token, [axes, N, 1]."""
        return (self.shift_N + self.index_1)[:, None].expand(axes, -1, -1)


class Memory:
    """Keys and values of every layer, one flat tensor each: as large as the largest room so far. One room is filled at a time."""

    def __init__(self) -> None:
        self.flat: dict[tuple[int, str], torch.Tensor] = {}
        self.capacity = 0
        """Rows times tokens."""

    def fits(self, rows: int, tokens: int) -> bool:
        """Whether a room of this shape has its place; otherwise all rooms move to a larger one when it is filled."""
        return rows * tokens <= self.capacity

    def fill(self, room: Room, layers: Sequence[Any], from_N: torch.Tensor, length: int) -> None:
        """Move the last `length` tokens of these rows of a cache's layers into a room, layer by layer. The layers may be those
        of a room in this memory; they lose what they hold."""
        self.capacity = max(self.capacity, room.rows * room.tokens)
        if len(room.cache.layers) != len(layers):
            room.cache.layers = [RoomLayer(room.index_1, bool(layer.is_sliding)) for layer in layers]
        room.index_1.fill_(length)
        for i, (layer, old) in enumerate(zip(room.cache.layers, layers, strict=True)):
            for name in ("keys", "values"):
                states = getattr(old, name)[:, :, :length].index_select(0, from_N)  # a copy: the place may be the same
                if layer is not old:
                    setattr(old, name, None)
                space = self._place(i, name, room, states)
                first = length - states.shape[-2]  # a window keeps its last tokens
                space[:, :, :first], space[:, :, length:] = 0, 0  # a number that isn't finite would pass the mask
                space[:, :, first:length] = states
                setattr(layer, name, space)

    def _place(self, layer: int, name: str, room: Room, like: torch.Tensor) -> torch.Tensor:
        heads, width = like.shape[1], like.shape[3]
        size = heads * width
        held = self.flat.get((layer, name))
        if held is None or held.numel() < self.capacity * size:
            self.flat.pop((layer, name), None)
            del held
            held = self.flat[layer, name] = like.new_zeros(self.capacity * size)
        return held[: room.rows * room.tokens * size].view(room.rows, heads, room.tokens, width)

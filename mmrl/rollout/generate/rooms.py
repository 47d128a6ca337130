"""A cache of fixed shape: a step of decoding has the same tensors at the same addresses until the room is used up.

The next index is a number on the device, and a mask hides what isn't written yet, as in transformers' `StaticCache`. That cache
belongs to one batch; here all rooms, whatever their numbers of rows and tokens, lie in one memory, in turn. States of recurrent
and convolution layers, which have no tokens, lie there too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from mmrl.rollout.generate.cache import ROOM, ReservedLayer

ROUND = 128
"""A room's tokens are a multiple of this, so that batches of similar lengths have rooms of one shape."""
KINDS = (DynamicLayer, DynamicSlidingWindowLayer, ReservedLayer, LinearAttentionLayer)
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


class StateLayer(LinearAttentionLayer):
    """The states [N, ...] of one recurrent or convolution layer, which transformers overwrites in place."""

    def __init__(self, like: LinearAttentionLayer) -> None:
        """like: a layer that has read tokens."""
        super().__init__(like.number_of_states)
        self.dtype, self.device, self.conv_kernel_size = like.dtype, like.device, dict(like.conv_kernel_size)
        self.has_previous_state = dict(like.has_previous_state)
        self.is_conv_states_initialized = dict(like.is_conv_states_initialized)
        self.is_recurrent_states_initialized = dict(like.is_recurrent_states_initialized)


class Room:
    """Place for N rows of so many tokens, and the inputs of their step."""

    def __init__(self, rows: int, tokens: int, device: torch.device, positions: torch.dtype = torch.long) -> None:
        """positions: the type of rotary positions."""
        self.rows, self.tokens = rows, tokens
        self.cache = DynamicCache()
        made = {"dtype": torch.long, "device": device}
        self.token_N1 = torch.zeros(rows, 1, **made)  # type: ignore[call-overload]
        self.index_1 = torch.zeros(1, **made)  # type: ignore[call-overload]
        """Where the next token is written."""
        self.shift_N = torch.zeros(rows, dtype=positions, device=device)
        """Rotary position of a token less its index."""
        self.mask_NS = torch.ones(rows, tokens, **made)  # type: ignore[call-overload]
        """0 for padding on the left. What isn't written yet lies behind the token and needs no 0."""

    def positions(self, axes: int) -> torch.Tensor:
        """Of the next token, [axes, N, 1]."""
        return (self.shift_N + self.index_1)[:, None].expand(axes, -1, -1)

    def states(self) -> list[torch.Tensor]:
        """What a step overwrites and can't be told to write again, unlike the keys and values at an index."""
        layers = [layer for layer in self.cache.layers if isinstance(layer, StateLayer)]
        return [getattr(layer, name)[number] for layer in layers for name, number in _states(layer)]


def _states(layer: LinearAttentionLayer) -> Iterator[tuple[str, int]]:
    """(name, number) of each state that a layer has."""
    for name in ("conv_states", "recurrent_states"):
        yield from ((name, number) for number, state in getattr(layer, name).items() if state is not None)


class Memory:
    """Keys, values and states of every layer, one flat tensor each: as large as the largest room so far. One room is filled at a
    time."""

    def __init__(self) -> None:
        self.flat: dict[tuple[Any, ...], torch.Tensor] = {}
        self.rows = self.capacity = 0
        """capacity: rows times tokens."""

    def fits(self, rows: int, tokens: int) -> bool:
        """Whether a room of this shape has its place; otherwise all rooms move to a larger one when it is filled."""
        return rows <= self.rows and rows * tokens <= self.capacity

    def fill(self, room: Room, layers: Sequence[Any], from_N: torch.Tensor, length: int) -> None:
        """Move the last `length` tokens of these rows of a cache's layers into a room, layer by layer. The layers may be those
        of a room in this memory; they lose what they hold."""
        self.rows, self.capacity = max(self.rows, room.rows), max(self.capacity, room.rows * room.tokens)
        if len(room.cache.layers) != len(layers):
            room.cache.layers = [_layer(room, layer) for layer in layers]
        room.index_1.fill_(length)
        for i, (layer, old) in enumerate(zip(room.cache.layers, layers, strict=True)):
            if isinstance(layer, StateLayer):
                self._fill_states(i, layer, old, from_N)
            else:
                self._fill_tokens(i, layer, old, from_N, (length, room.tokens))

    def _fill_tokens(self, i: int, layer: RoomLayer, old: Any, from_N: torch.Tensor, lengths: tuple[int, int]) -> None:
        """lengths: of what is there and of the room."""
        length, tokens = lengths
        for name in ("keys", "values"):
            states = getattr(old, name)[:, :, :length].index_select(0, from_N)  # a copy: the place may be the same
            if layer is not old:
                setattr(old, name, None)
            N, heads, kept, width = states.shape
            space = self._place((i, name), states, (N, heads, tokens, width), self.capacity * heads * width)
            first = length - kept  # a window keeps its last tokens
            space[:, :, :first], space[:, :, length:] = 0, 0  # a number that isn't finite would pass the mask
            space[:, :, first:length] = states
            setattr(layer, name, space)

    def _fill_states(self, i: int, layer: StateLayer, old: LinearAttentionLayer, from_N: torch.Tensor) -> None:
        for name, number in list(_states(old)):
            states = getattr(old, name)[number].index_select(0, from_N)
            if layer is not old:
                getattr(old, name)[number] = None
            most = self.rows * math.prod(states.shape[1:])
            getattr(layer, name)[number] = self._place((i, name, number), states, states.shape, most).copy_(states)

    def _place(self, key: tuple[Any, ...], like: torch.Tensor, shape: Sequence[int], most: int) -> torch.Tensor:
        """A tensor of this shape at the beginning of a flat one, which has `most` numbers or more."""
        held = self.flat.get(key)
        if held is None or held.numel() < most:
            self.flat.pop(key, None)
            del held
            held = self.flat[key] = like.new_zeros(most)
        return held[: math.prod(shape)].view(*shape)


def _layer(room: Room, like: Any) -> RoomLayer | StateLayer:
    """An empty layer of a room for the content of this one."""
    if isinstance(like, LinearAttentionLayer):
        return StateLayer(like)
    return RoomLayer(room.index_1, bool(like.is_sliding))

"""A key-value cache that is expanded to a group once and then written in place."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

ROOM = 64
"""Tokens of a completion before the first copy; from then on the room doubles."""


class ReservedLayer(DynamicLayer):
    """A layer with room for the completion: `DynamicLayer` copies everything at each token, this one only when room runs out."""

    def __init__(self, prompt: DynamicLayer, repeats: int) -> None:
        super().__init__()
        self.is_initialized, self.dtype, self.device = True, prompt.keys.dtype, prompt.device
        self.start = self.length = prompt.keys.shape[-2]
        self.rooms = tuple(self._reserve(x, repeats, ROOM) for x in (prompt.keys, prompt.values))
        self._view()

    @staticmethod
    def _reserve(states: torch.Tensor, repeats: int, room: int) -> torch.Tensor:
        batch, heads, length, width = states.shape
        space = states.new_empty(batch, repeats, heads, length + room, width)
        space[..., :length, :] = states[:, None]
        return space.flatten(0, 1)

    def _view(self) -> None:
        self.keys, self.values = (x[:, :, : self.length] for x in self.rooms)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + key_states.shape[-2]
        if end > self.rooms[0].shape[-2]:
            room = end - self.length + max(ROOM, self.length - self.start)
            self.rooms = tuple(self._reserve(x[:, :, : self.length], 1, room) for x in self.rooms)
        for space, states in zip(self.rooms, (key_states, value_states), strict=True):
            space[:, :, self.length : end] = states
        self.length = end
        self._view()
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.rooms = tuple(x[beam_idx] for x in self.rooms)
        self._view()


def select(cache: Any, rows_N: torch.Tensor) -> None:
    """Keep these rows, in this order; a row may occur several times."""
    for layer in cache.layers:
        layer.reorder_cache(rows_N)  # the one operation that layers of every kind have, linear attention's too
    _select_positions(cache, rows_N)


def expand(cache: Any, rows_N: torch.Tensor, repeats: int) -> None:
    """Repeat each prompt's cache for its group, with room to write completions in place. rows_N: each rollout's prompt."""
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[i] = ReservedLayer(layer, repeats)
        else:
            layer.reorder_cache(rows_N)
    _select_positions(cache, rows_N)


def _select_positions(cache: Any, rows_N: torch.Tensor) -> None:
    """Positions [axes, N, S] that a model keeps with its cache, as Qwen4-Exp does."""
    if (positions := getattr(cache, "position_ids", None)) is not None:
        cache.position_ids = positions.index_select(-2, rows_N)

"""A key-value cache that is expanded to a group once and then written in place."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer


class ReservedLayer(DynamicLayer):
    """A layer with room for the completion: `DynamicLayer` copies everything at each token, this one appends."""

    def __init__(self, prompt: DynamicLayer, repeats: int, room: int) -> None:
        super().__init__()
        self.is_initialized, self.dtype, self.device = True, prompt.dtype, prompt.device
        self.length = prompt.keys.shape[-2]
        self.rooms = tuple(self._reserve(x, repeats, room) for x in (prompt.keys, prompt.values))
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
        for space, states in zip(self.rooms, (key_states, value_states), strict=True):
            space[:, :, self.length : end] = states
        self.length = end
        self._view()
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.rooms = tuple(x[indices] for x in self.rooms)
        self._view()


def expand(cache: Any, repeats: int, room: int) -> None:
    """Repeat each prompt's cache for its group, with room for so many more tokens."""
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[i] = ReservedLayer(layer, repeats, room)
        else:
            layer.batch_repeat_interleave(repeats)

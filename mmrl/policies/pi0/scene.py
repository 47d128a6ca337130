"""What one pass over pictures and text leaves for the action expert: keys and values, P tokens, H the expert's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache


class Reading(DynamicCache):
    """Stores the keys and values of one pass. A layer that is recomputed for gradients writes the same values again."""

    repeatable = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        layer = self.layers[layer_idx]
        layer.keys, layer.values, layer.is_initialized = key_states, value_states, True
        return key_states, value_states


class Prefix:
    """A read-only cache: puts the keys and values of a `Reading` in front of those of a pass, and stores nothing."""

    repeatable = True

    def __init__(self, reading: Reading) -> None:
        self.layers = [(layer.keys, layer.values) for layer in reading.layers]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        keys, values = self.layers[layer_idx]
        return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)


@dataclass(slots=True, kw_only=True)
class Scene:
    """The encoded inputs of a call: everything but the actions."""

    cache: Prefix
    real_nP: torch.Tensor
    """bool: False for padding."""
    state_nH: torch.Tensor | None = None
    """The robot's state as pi0's expert reads it."""
    seen_nH: torch.Tensor | None = None
    """What a critic reads, once computed."""

"""The repeated layers of a transformers model, another forward pass for them, and how they are given a cache."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

CACHES = ("cache_params", "past_key_values", "past_key_value", "layer_past", "cache")
"""Names of the argument by which models and layers of transformers take a cache. Since 5.24 it is `cache` in most of them."""


def cache_argument(model: torch.nn.Module) -> str:
    """The name by which the forward pass of a model's class takes a key-value cache."""
    return _cache_argument(type(model).forward)


@functools.cache
def _cache_argument(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def repeated_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of all parts of a model, in its order: those that transformers can checkpoint."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextlib.contextmanager
def replaced_forwards(
    layers: Sequence[torch.nn.Module], replace: Callable[[torch.nn.Module], Callable[..., Any]]
) -> Iterator[None]:
    """Inside, the forward pass of each layer is `replace(layer)`. Hooks and names of weights stay as they are."""
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = replace(layer)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward

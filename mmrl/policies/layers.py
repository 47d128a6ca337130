"""The repeated layers of a transformers model, and another forward pass for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


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

"""Vectors in place of tokens' embeddings: a robot's state, empty slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def embeddings_replaced(
    embedding: nn.Module, at_BS: torch.Tensor, vectors_NH: torch.Tensor, empty_BS: torch.Tensor
) -> Iterator[None]:
    """Within it, `embedding` gives N vectors, with their gradient, for the N tokens at which `at_BS` is true, row by row, and
    zeros where `empty_BS` is. It works for every model that looks its tokens up in one layer, whatever else it puts among them
    (pictures)."""

    def put(module: nn.Module, inputs: Any, found_BSH: torch.Tensor) -> torch.Tensor:
        found_BSH = found_BSH.masked_fill(empty_BS[..., None], 0.0)
        return found_BSH.masked_scatter(at_BS[..., None], vectors_NH.to(found_BSH.dtype))

    handle = embedding.register_forward_hook(put)
    try:
        yield
    finally:
        handle.remove()

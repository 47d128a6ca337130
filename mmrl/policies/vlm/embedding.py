"""Vectors in place of tokens' embeddings: a robot's state, empty slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def embeddings_replaced(embedding: nn.Module, mask_BS: torch.Tensor, vectors_BSH: torch.Tensor) -> Iterator[None]:
    """Within it, `embedding` gives the vectors, with their gradient, wherever the mask is true. It works for every model that
    looks its tokens up in one layer, whatever else it puts among them (pictures)."""

    def put(module: nn.Module, inputs: Any, found_BSH: torch.Tensor) -> torch.Tensor:
        return torch.where(mask_BS[..., None], vectors_BSH.to(found_BSH.dtype), found_BSH)

    handle = embedding.register_forward_hook(put)
    try:
        yield
    finally:
        handle.remove()

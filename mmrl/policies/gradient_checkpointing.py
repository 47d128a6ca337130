"""Gradient checkpointing: the backward pass recomputes a layer's activations instead of reading them from memory.

transformers' own switch works in training mode only. A policy stays in evaluation mode, where dropout is off and a learner's
log-probabilities are the sampler's, so the layers that transformers would checkpoint are wrapped here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from mmrl.policies.choices import repeatable
from mmrl.policies.layers import CACHES, repeated_layers, replaced_forwards


@contextlib.contextmanager
def gradient_checkpointing(model: torch.nn.Module, on: bool = True, offload: bool = False) -> Iterator[None]:
    """Forward passes inside store only the inputs of each layer; their backward pass may be inside or after. offload: store them
    in the host's memory.

    Passes without gradients are unchanged, and so are those with a cache, unless the cache is `repeatable`: it gives a layer that
    is recomputed the same values again.
    """
    layers = repeated_layers(model) if on else []
    with replaced_forwards(layers, lambda layer: partial(_again, layer.forward, offload)):
        yield


def _again(forward: Callable, offload: bool, *args: Any, **kwargs: Any) -> Any:
    caches = [kwargs[k] for k in CACHES if kwargs.get(k) is not None]
    if not torch.is_grad_enabled() or not all(getattr(cache, "repeatable", False) for cache in caches):
        return forward(*args, **kwargs)
    # nothing in evaluation mode is random; the layout of packed rows is a variable of the context
    again = repeatable(partial(forward, **kwargs))
    with saved_tensors_hooks(_to_host, _to_device) if offload else contextlib.nullcontext():
        return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False)


def _to_host(saved: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
    """A copy in the host's memory, pinned beside a GPU, so that Python goes on meanwhile. Copies both ways are in the order of
    the device's work."""
    host = torch.empty_like(saved, device="cpu", pin_memory=saved.is_cuda)
    return saved.device, host.copy_(saved.detach(), non_blocking=True)


def _to_device(kept: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
    device, host = kept
    return host.to(device, non_blocking=True)

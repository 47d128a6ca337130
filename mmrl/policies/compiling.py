"""Compiled layers: torch turns the forward and backward pass of a model's repeated layers into fewer kernels.

All layers of a class share what is compiled, as in torch's regional compilation, and sizes stay variables, so rows of other
lengths need no other code. Attention isn't compiled: what it does depends on a pass and not on sizes alone, see `vlm.attention`.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from mmrl.api.errors import shorten
from mmrl.policies.choices import Choice
from mmrl.policies.layers import CACHES, repeated_layers, replaced_forwards

RECOMPILATIONS = 64
"""Most kinds of arguments for which a function is compiled: with and without gradients, adapters, one row or several. Beyond it,
torch runs the function as it is, and logs so."""


@contextlib.contextmanager
def compiled_layers(models: Iterable[torch.nn.Module], on: bool = True) -> Iterator[None]:
    """Forward passes of these models inside run compiled layers; their backward pass may be inside or after. What can't be
    compiled runs as it is, after a warning. Passes with a cache are unchanged, and so are layers whose forward pass was replaced
    already."""
    layers = {layer: None for model in models for layer in repeated_layers(model)} if on else {}
    with replaced_forwards([layer for layer in layers if "forward" not in vars(layer)], CompiledForward):
        yield


class Kind:
    """The layers of one class."""

    def __init__(self, layer: type[torch.nn.Module]) -> None:
        self.layer = layer
        self.failure = ""
        """Why they can't be compiled, once that is known."""

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        return compiled(self.layer.forward)

    def fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {shorten(error, 200)}"
        warnings.warn(
            f"train.compile: {self.layer.__name__} can't be compiled: its layers are as exact without it, but slower "
            f"({self.failure})",
            stacklevel=2,
        )


def compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """For tensors of all sizes."""
    # intermediate values are rounded as without compilation, since the sampler's are
    found: Callable[..., Any] = torch.compile(forward, dynamic=True, options={"emulate_precision_casts": True})
    return found


_KINDS: dict[type[torch.nn.Module], Kind] = {}
"""One for a class, in this process: all models, stages and passes share what is compiled."""


def kind_of(layer: type[torch.nn.Module]) -> Kind:
    return _KINDS.setdefault(layer, Kind(layer))


class CompiledForward:
    """The forward pass of a layer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self.layer, self.kind = layer, kind_of(type(layer))  # type: ignore[arg-type]  # a class is hashable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        choice = Choice(not self.kind.failure and not has_cache(kwargs))
        if not choice.faster:
            return self.kind.layer.forward(self.layer, *args, **kwargs)
        allow_recompilations()
        try:
            return self.kind.compiled(self.layer, *args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # torch, Triton or the C compiler may fail in any way
            if choice.repeated:
                raise  # also how a layer ends that is computed again
            choice.failed()
            found = self.kind.layer.forward(self.layer, *args, **kwargs)  # raises what isn't the compiler's fault
            self.kind.fail(error)
            return found


def has_cache(given: Mapping[str, Any]) -> bool:
    return any(given.get(name) is not None for name in CACHES)


def allow_recompilations() -> None:
    """For functions that are compiled for many kinds of arguments, and whose failure is to be known in the forward pass. Call it
    before each call of such a function: since torch 2.12 each thread and each context has settings of its own."""
    if torch._dynamo.config.recompile_limit < RECOMPILATIONS:
        torch._dynamo.config.recompile_limit = RECOMPILATIONS
    # a backward pass that doesn't compile says so in the forward pass, where another way can be taken
    if not torch._functorch.config.force_non_lazy_backward_lowering:
        torch._functorch.config.force_non_lazy_backward_lowering = True

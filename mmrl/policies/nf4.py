"""Frozen weights in 4 bits: NormalFloat with double quantisation; Dettmers et al., QLoRA, section 3, arXiv 2305.14314.

The numbers are bitsandbytes'. Its layer isn't used: it multiplies with other kernels without gradients than with them, on some
CPUs in bfloat16, so that a sampler's log-probabilities wouldn't be the learner's. Here every pass multiplies by the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from mmrl.compute.bitsandbytes import import_bitsandbytes

WHAT, CURE = "policy.lora.nf4", "leave it out"
BLOCK = 64
"""Weights that share a scale, as in the paper."""


class NF4Linear(nn.Linear):
    """A frozen linear layer that keeps its weights in 4 bits, and a scale of 8 bits for each 64 of them. Passes, also backward
    ones, make them whole for as long as they multiply."""

    def __init__(self, layer: nn.Linear, device: torch.device) -> None:
        """layer: whose weights are quantised, on this device."""
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.dtype = layer.in_features, layer.out_features, layer.weight.dtype
        bias = layer.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach().to(device), requires_grad=False)
        functional = import_bitsandbytes(WHAT, CURE).functional
        packed, state = functional.quantize_4bit(
            layer.weight.detach().to(device), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
        )
        self.packed = nn.Parameter(packed, requires_grad=False)
        """uint8 [in_features * out_features / 2, 1]: two weights each."""
        self.register_buffer("scales", state.absmax)
        self.register_buffer("scales_of_scales", state.state2.absmax)
        self.register_buffer("offset", state.offset)
        self.register_buffer("levels", state.code)
        self.register_buffer("levels_of_scales", state.state2.code)
        self.outer, size = state.state2.blocksize, layer.weight.numel()
        # as if each block were a row: on a CPU, bitsandbytes 0.50 takes another block's scale in rows with parts of blocks
        self.rows = torch.Size((size // BLOCK, BLOCK) if size % BLOCK == 0 else (1, size))

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The weights [out_features, in_features] in the dtype that they had; made anew each time."""
        from bitsandbytes import functional  # which __init__ has imported

        known: dict[str, Any] = self._buffers
        outer = functional.QuantState(
            absmax=known["scales_of_scales"], code=known["levels_of_scales"], blocksize=self.outer, dtype=torch.float32
        )
        state = functional.QuantState(
            absmax=known["scales"],
            shape=self.rows,
            dtype=self.dtype,
            blocksize=BLOCK,
            code=known["levels"],
            quant_type="nf4",
            offset=known["offset"],
            state2=outer,
        )
        whole: torch.Tensor = functional.dequantize_4bit(self.packed, state)
        return whole.view(self.out_features, self.in_features)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Product.apply(input, self)
        return found

    def whole(self) -> nn.Linear:
        """The layer with its weights as they are multiplied with."""
        made = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        made.weight = nn.Parameter(self.weight, requires_grad=False)
        made.bias = self.bias
        return made


class _Product(torch.autograd.Function):
    """The product with a layer's weights. The backward pass makes them again, so they aren't kept for it."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, layer: NF4Linear) -> torch.Tensor:
        ctx.layer = layer
        return linear(values, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        return gradients[0] @ ctx.layer.weight, None


def quantise(model: nn.Module, layers: Iterable[str], device: torch.device) -> None:
    """Put NF4 layers in the place of linear layers of these names, one by one, on a device that may lack room for all."""
    for name in layers:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        model.set_submodule(name, NF4Linear(layer, device))


def dequantise(model: nn.Module) -> None:
    """Put linear layers in the place of NF4 layers, which compute the same."""
    for name, layer in list(nf4_layers(model)):
        model.set_submodule(name, layer.whole())


def nf4_layers(model: nn.Module) -> Iterator[tuple[str, NF4Linear]]:
    """(name, layer)."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, NF4Linear))

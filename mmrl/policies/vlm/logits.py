"""Logits from the last hidden states: the output embeddings, and what some models do behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mmrl.policies.vlm.capabilities import Head

NUMBERS: Mapping[Head, str] = {
    "softcap": "final_logit_softcapping",
    "scale": "logit_scale",
    "multiply": "logits_scaling",
    "divide": "logits_scaling",
}
"""What follows the output embeddings -> its number in a model's configuration. `softcap`: Gemma 2 (Gemma Team 2024, section 2),
logits stay within a bound; `scale`: Cohere's Command models; `multiply`: HyperCLOVA X; `divide`: IBM's Granite models."""
FACTOR = "output_multiplier"
"""What Muse Glimmer multiplies by before it caps."""


@dataclass(frozen=True, slots=True)
class Logits:
    """Hidden states -> logits."""

    out: Any
    """The output embeddings, a module."""
    kind: Head
    number: float
    factor: float = 1.0
    """Of the output embeddings' products, before a `softcap`."""

    @staticmethod
    def of(model: Any, kind: Head) -> Logits:
        factor = getattr(model.config.get_text_config(), FACTOR, None) or 1.0
        return Logits(model.get_output_embeddings(), kind, _number(model, kind), factor)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.after(self.out(hidden))

    def after(self, products: torch.Tensor) -> torch.Tensor:
        """The logits, from the output embeddings' products."""
        if self.kind == "softcap":
            scaled = products if self.factor == 1 else products * self.factor
            return torch.tanh(scaled / self.number) * self.number
        if self.kind in ("scale", "multiply"):
            return products * self.number
        return products / self.number if self.kind == "divide" else products

    def slope_(self, d_logits: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Gradients of the logits -> of the products, in place."""
        if self.kind == "softcap":
            d_scaled = d_logits.mul_(1 - (logits.to(d_logits.dtype) / self.number).square())
            return d_scaled if self.factor == 1 else d_scaled.mul_(self.factor)
        if self.kind in ("scale", "multiply"):
            return d_logits.mul_(self.number)
        return d_logits.div_(self.number) if self.kind == "divide" else d_logits


def _number(model: Any, kind: Head) -> float:
    return (getattr(model.config.get_text_config(), NUMBERS[kind], None) or 0.0) if kind in NUMBERS else 0.0


def possible_heads(model: Any) -> Iterator[Head]:
    """Those for which the model's configuration has a number."""
    yield "plain"
    yield from (kind for kind in NUMBERS if _number(model, kind))

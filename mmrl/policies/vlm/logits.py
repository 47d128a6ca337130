"""Logits from the last hidden states: the output embeddings, and what some models do behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mmrl.policies.vlm.capabilities import Head

NUMBERS: Mapping[Head, str] = {"softcap": "final_logit_softcapping", "scale": "logit_scale", "divide": "logits_scaling"}
"""What follows the output embeddings -> its number in a model's configuration. `softcap`: Gemma 2 (Gemma Team 2024, section 2),
logits stay within a bound; `scale`: Cohere's Command models; `divide`: IBM's Granite models."""


@dataclass(frozen=True, slots=True)
class Logits:
    """Hidden states -> logits."""

    out: Any
    """The output embeddings, a module."""
    kind: Head
    number: float

    @staticmethod
    def of(model: Any, kind: Head) -> Logits:
        return Logits(model.get_output_embeddings(), kind, _number(model, kind))

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.after(self.out(hidden))

    def after(self, products: torch.Tensor) -> torch.Tensor:
        """The logits, from the output embeddings' products."""
        if self.kind == "softcap":
            return torch.tanh(products / self.number) * self.number
        if self.kind == "scale":
            return products * self.number
        return products / self.number if self.kind == "divide" else products

    def slope_(self, d_logits: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Gradients of the logits -> of the products, in place."""
        if self.kind == "softcap":
            return d_logits.mul_(1 - (logits.to(d_logits.dtype) / self.number).square())
        if self.kind == "scale":
            return d_logits.mul_(self.number)
        return d_logits.div_(self.number) if self.kind == "divide" else d_logits


def _number(model: Any, kind: Head) -> float:
    return (getattr(model.config.get_text_config(), NUMBERS[kind], None) or 0.0) if kind in NUMBERS else 0.0


def possible_heads(model: Any) -> Iterator[Head]:
    """Those for which the model's configuration has a number."""
    yield "plain"
    yield from (kind for kind in NUMBERS if _number(model, kind))

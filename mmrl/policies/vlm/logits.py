"""Logits from the last hidden states: the output embeddings, and what some models do behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from mmrl.policies.vlm.capabilities import Head

Logits = Callable[[torch.Tensor], torch.Tensor]


def _softcap(model: Any) -> Logits:
    """Gemma 2 (Gemma Team 2024, section 2): logits stay within a bound."""
    out, cap = model.get_output_embeddings(), _number(model, "final_logit_softcapping")
    return lambda hidden: torch.tanh(out(hidden) / cap) * cap


def _scale(model: Any) -> Logits:
    """Cohere's Command models."""
    out, scale = model.get_output_embeddings(), _number(model, "logit_scale")
    return lambda hidden: out(hidden) * scale


def _divide(model: Any) -> Logits:
    """IBM's Granite models."""
    out, scale = model.get_output_embeddings(), _number(model, "logits_scaling")
    return lambda hidden: out(hidden) / scale


HEADS: Mapping[Head, Callable[[Any], Logits]] = {
    "plain": lambda model: model.get_output_embeddings(),
    "softcap": _softcap,
    "scale": _scale,
    "divide": _divide,
}


def _number(model: Any, name: str) -> float:
    return getattr(model.config.get_text_config(), name, None) or 0.0


def possible_heads(model: Any) -> Iterator[Head]:
    """Those for which the model's configuration has a number."""
    yield "plain"
    names: dict[Head, str] = {"softcap": "final_logit_softcapping", "scale": "logit_scale", "divide": "logits_scaling"}
    yield from (head for head, name in names.items() if _number(model, name))

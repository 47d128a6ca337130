"""What a family's builder returns, and the sizes that its towers have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmrl.policies.vlm.tiny.tokens import rows

SIDE, PATCH = 28, 7
"""Pixels of a picture or tile and of a patch, for families whose vision tower takes one size."""
HEADS = 4


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A family's own classes at small sizes."""

    config: Any
    kind: Any
    """The class of the model."""
    tokenizer: Any
    processor: Callable[[], Any]
    """Makes the processor. It may need packages that the model doesn't."""


def in_turn(layers: int, often: str, last: str = "full_attention") -> list[str]:
    """The kind of each layer: two in turn, as in published models, so that the last layer has the second kind."""
    return [(often, last)[(layers - i) % 2] for i in range(layers)]


def text(kind: str, tokenizer: Any, hidden: int, layers: int, **more: Any) -> dict[str, Any]:
    """The configuration of a language model; `more` adds to it. kind: its `model_type`."""
    return {
        "model_type": kind,
        "vocab_size": rows(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **more,
    }


def eye(kind: str, hidden: int, layers: int, **more: Any) -> dict[str, Any]:
    """The configuration of a vision tower; `more` adds to it. kind: its `model_type`; "" leaves it out."""
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers, "num_attention_heads": HEADS}
    named = {"model_type": kind} if kind else {}
    return {**named, **sizes, "image_size": SIDE, "patch_size": PATCH, **more}

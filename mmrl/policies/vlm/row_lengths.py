"""What some models compute from the length of a batch's rows, or from a token's index in its row, made a matter of its position.

A completion is sampled in one row and trained in another, beside longer ones, behind padding or behind its siblings. Its
log-probabilities may not depend on that.

- Rotary frequencies that change once a batch has a longer row than a model was first trained with: `dynamic` (InternVL 2.5 and 3)
  and `longrope` (Phi-4-multimodal). transformers chooses anew in each pass, for all rows but not for the keys in a cache, and
  waits for the device to know the length. Here they stay those of short rows. vLLM chooses once, too (its pull request 27431).
- Llama 4's queries, which grow with the distance in layers without rotary embeddings (Nakanishi, Scalable-Softmax): transformers
  takes the index in the row for a position.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

CHANGING = ("dynamic", "longrope")
FIXED = "fixed"
"""A type of rotary embeddings that transformers doesn't know, so that it leaves the frequencies alone."""


def ignore_row_lengths(model: Any) -> None:
    """Make a model's numbers independent of its rows' lengths. Nothing happens to a model that was made so, or needn't be."""
    for module in model.modules():
        _fix_frequencies(module)
        attention: Any = getattr(module, "self_attn", None)
        if getattr(attention, "attn_temperature_tuning", False) and not attention.use_rope:
            attention.attn_temperature_tuning, attention.scales_by_position = False, True
            module.register_forward_pre_hook(_note_positions, with_kwargs=True)
        if getattr(attention, "scales_by_position", False):
            hooks = attention.q_proj._forward_hooks.values()  # merging adapters leaves it behind
            if not any(getattr(hook, "func", None) is _scale_queries for hook in hooks):
                scale = partial(_scale_queries, attention.floor_scale, attention.attn_scale)
                attention.q_proj.register_forward_hook(scale)


def _fix_frequencies(module: Any) -> None:
    """rope_type: of the module, or of each type of layers, whose buffers have its name before theirs."""
    kinds = getattr(module, "rope_type", None)
    for layer, kind in kinds.items() if isinstance(kinds, Mapping) else [("", kinds)]:
        if kind in CHANGING:
            before = f"{layer}_" if layer else ""
            held, first = (getattr(module, f"{before}{name}") for name in ("inv_freq", "original_inv_freq"))
            setattr(module, f"{before}inv_freq", first.to(held.device))
            module.rope_type = {**module.rope_type, layer: FIXED} if layer else FIXED


def longest_row(config: Any) -> int | None:
    """Tokens of the longest row for which a model with this configuration has the right frequencies, where others have other
    ones (`longrope`); None if there is no such length."""
    rotary = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if rotary.get("rope_type") != "longrope" or rotary["short_factor"] == rotary["long_factor"]:
        return None
    return int(rotary["original_max_position_embeddings"])


_POSITIONS_BS: ContextVar[torch.Tensor] = ContextVar("positions")
"""Of the tokens that a layer is given: a variable of the context, which a layer that is computed again has as it was."""


def _note_positions(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _POSITIONS_BS.set(kwargs["position_ids"])


@torch.compiler.disable  # compiled, it would be compiled anew for each length
def _scale_queries(floor_scale: float, attn_scale: float, projection: Any, args: Any, queries_BSQ: torch.Tensor) -> torch.Tensor:
    """The queries [B, S, heads * width], scaled as transformers' Llama4TextAttention does it behind this projection: nothing is
    in between in a layer without rotary embeddings."""
    far_BS = torch.floor((_POSITIONS_BS.get().float() + 1) / floor_scale)
    scale_BS1 = (torch.log1p(far_BS) * attn_scale + 1)[..., None]
    return (queries_BSQ * scale_BS1).to(queries_BSQ.dtype)

"""The shapes of a model of any family of transformers: its layers and its pictures are counted by passes without numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from mmrl.api.errors import UserError, shorten
from mmrl.policies.vlm.known_families import class_of
from mmrl.train.plan.layers import chosen_of, layers_of
from mmrl.train.plan.pictures import Pictures
from mmrl.train.plan.shapes import Experts, Shapes, Text, Vision
from mmrl.train.plan.skeletons import skeleton

ELSEWHERE = Vision(layers=0, hidden=0, inner=0, heads=1, out=0, patch=1, frames=1, merge=1, window=0, full_layers=0)
"""Of a tower whose sizes a pass shows."""
LARGEST = 2**24
"""Tokens of a vocabulary at most: beyond that a config.json is damaged, and to list the tokens would fill the memory."""
_EXPERTS = re.compile(r".*layers\.(\d+)\..*experts\.down_proj$")


def counted_shapes(data: Mapping[str, Any], processor: Any, what: str) -> Shapes:
    """The shapes of the content of a config.json. processor: of the model, as transformers loads it. Raises UserError if its
    passes can't be counted. what: the model's name in the error."""
    config, kind = json.dumps(data), str(data["model_type"])
    try:
        model = skeleton(config)
        text = _text(model, config)
        for b in (2, 4):
            layers_of(config).counted(b)
    except Exception as error:
        raise UserError(
            f"{what} is a {kind}, whose passes mmrl plan can't count without its weights: {shorten(error, 160)}"
        ) from error
    named = tuple((name, tuple(p.shape)) for name, p in model.named_parameters())
    pictures = Pictures(config, processor, what)
    hears = not class_of(kind).sees
    return Shapes(family=kind, text=text, vision=ELSEWHERE, listed=named, config=config, pictures=pictures, hears=hears)


def _text(model: Any, config: str) -> Text:
    """The language model. Sizes of its MLPs and of attention are those of its passes, and not told here."""
    if (vocabulary := model.get_output_embeddings().weight.shape[0]) > LARGEST:
        raise UserError(f"{vocabulary:,} tokens are no vocabulary: its config.json is damaged, copy it again")
    whole, counted = model.config.get_text_config(), layers_of(config)
    settings = getattr(whole, "per_layer_config", [whole])[-1]  # Gemma 4's layers have heads of several widths
    keys, linear, state = counted.cached
    heads, hidden = settings.num_attention_heads, settings.hidden_size
    experts = {int(found[1]): p.shape for name, p in model.named_parameters() if (found := _EXPERTS.match(name))}
    return Text(
        layers=whole.num_hidden_layers,
        hidden=hidden,
        inner=0,
        heads=heads,
        kv_heads=getattr(settings, "num_key_value_heads", None) or heads,
        head_dim=getattr(settings, "head_dim", None) or hidden // heads,
        vocabulary=vocabulary,
        tied=not any(name.startswith("lm_head.") for name, _ in model.named_parameters()),
        longest=whole.max_position_embeddings,
        experts=_experts(settings, next(iter(experts.values()))) if experts else None,
        where=frozenset(experts),
        linear=linear,
        state=state,
        cached=keys,
        shared=counted.shared,
        copies=counted.copies,
        capped=getattr(whole, "attn_logit_softcapping", None) is not None,
        bounded=getattr(whole, "final_logit_softcapping", None) is not None,
        masks=len({*(getattr(whole, "layer_types", None) or ())} - {"linear_attention", "conv"}) or 1,
    )


def _experts(settings: Any, shape: tuple[int, ...]) -> Experts:
    """shape: of the matrices out of all experts of a layer."""
    count, *sides = shape
    return Experts(count=count, chosen=chosen_of(settings), inner=math.prod(sides) // settings.hidden_size)

"""The shapes of a model by its config: its layers and its pictures are counted by passes without numbers."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from mmrl.api.errors import UserError, shorten
from mmrl.policies.vlm.known_families import class_of
from mmrl.policies.vlm.thinkers import thinker_settings
from mmrl.train.plan.families import GRIDS
from mmrl.train.plan.layers import chosen_of, layers_of
from mmrl.train.plan.pictures import Pictures
from mmrl.train.plan.shapes import Experts, Shapes, Text
from mmrl.train.plan.skeletons import skeleton
from mmrl.train.plan.unshown import Gridded, OfOneSize

LARGEST = 2**24
"""Tokens of a vocabulary at most: beyond that a config.json is damaged, and to list the tokens would fill the memory."""
_EXPERTS = re.compile(r".*layers\.(\d+)\..*experts\.down_proj$")
_TAP = re.compile(r".*merger_list\.\d+")


def shapes_of(data: Mapping[str, Any], what: str, processor: Any = None) -> Shapes:
    """The shapes of the content of a config.json, or of the thinker in it. processor: of the model, as transformers loads it; not
    needed for the families of `GRIDS` and OpenVLA. Raises UserError if its passes can't be counted. what: the model's name in the
    error."""
    data = thinker_settings(data)
    config, kind = json.dumps(data), str(data["model_type"])
    try:
        model = skeleton(config)
        text = _text(model, config)
        layers_of(config).counted(2)
        pictures = _pictures(kind, config, processor, what)
    except Exception as error:
        raise UserError(
            f"{what} is a {kind}, whose passes mmrl plan can't count without its weights: {shorten(error, 160)}"
        ) from error
    return Shapes(
        family=kind,
        text=text,
        listed=tuple((name, tuple(p.shape)) for name, p in model.named_parameters()),
        config=config,
        pictures=pictures,
        hears=not class_of(kind).sees,
        taps=sum(bool(_TAP.fullmatch(name)) for name, _ in model.named_modules()),
        seen=pictures.seen(0) if pictures.alike else None,
    )


def _pictures(kind: str, config: str, processor: Any, what: str) -> Pictures:
    return _alike(kind, config) if kind in (*GRIDS, "openvla") else Pictures(config, processor, what)


@functools.lru_cache(8)
def _alike(kind: str, config: str) -> Pictures:
    """Those that need no processor, which are counted once."""
    return OfOneSize(config, None, "the model") if kind == "openvla" else Gridded(config, "the model")


def _text(model: Any, config: str) -> Text:
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
        heads=heads,
        kv_heads=getattr(settings, "num_key_value_heads", None) or heads,
        head_dim=getattr(settings, "head_dim", None) or hidden // heads,
        vocabulary=vocabulary,
        experts=Experts(count=next(iter(experts.values()))[0], chosen=chosen_of(settings)) if experts else None,
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

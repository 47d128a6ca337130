"""Models without weights, from their config alone."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from mmrl.policies.vlm.thinkers import thinker_class


def _classes(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """(class of the model, its config of transformers, with the defaults of its family)."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    from mmrl.policies.openvla import model  # noqa: F401  registers it with transformers
    from mmrl.policies.vlm.suitability import named_class

    settings = {**data}
    kind = settings.pop("model_type")
    thinker = thinker_class(kind)
    made = thinker.config_class(**settings) if thinker else transformers.AutoConfig.for_model(kind, **settings)
    named = None if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES else named_class(data)
    return thinker or named or transformers.AutoModelForImageTextToText, made


@functools.lru_cache(2)
def skeleton(data: str) -> Any:
    """The model on torch's meta device. data: content of its config.json."""
    import torch

    kind, config = _classes(json.loads(data))
    make = kind.from_config if kind.__name__.startswith("Auto") else kind._from_config
    with torch.device("meta"):
        return make(config)


def weights_in(data: Mapping[str, Any]) -> int:
    """Number of all weights."""
    return sum(p.numel() for p in skeleton(json.dumps(data)).parameters())


@functools.lru_cache(16)
def linear_layers(config: str, adapted: tuple[str, ...], packed: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the layers of a model that get adapters by these parts and patterns, and of those that are kept in 4 bits. config:
    content of its config.json. Raises UserError for a part without such layers, and if no layer gets adapters."""
    from mmrl.policies.lora import adapted_layers, quantised_layers

    model = skeleton(config)
    return frozenset(adapted_layers(model, adapted)), frozenset(quantised_layers(model, packed))

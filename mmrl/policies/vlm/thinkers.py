"""Checkpoints of Qwen2.5-Omni and Qwen3-Omni, which hold a thinker beside a talker and a vocoder: the thinker reads all media and
writes text, and it alone is trained; `published.save_model` says how it is saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WHOLE = {"qwen2_5_omni": "Qwen2_5Omni", "qwen3_omni_moe": "Qwen3OmniMoe"}
"""`model_type` of a whole model -> name of its classes in transformers, without an ending."""
SPEAKING = ("talker.", "token2wav.", "code2wav.")
"""Beginnings of the names of weights that a thinker leaves alone."""
PREFIX = "thinker."
"""Of a thinker's weights in a whole model."""


def whole_kind(kind: str) -> str:
    """The `model_type` of the whole model that this one is the thinker of; empty for other models."""
    whole = kind.removesuffix("_thinker")
    return whole if whole in WHOLE and whole != kind else ""


def thinker_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a config.json; of a whole model, the thinker's. How the weights are quantised stands in the outer one."""
    inner, kind = settings.get("thinker_config"), settings.get("model_type")
    if not isinstance(kind, str) or kind not in WHOLE or not isinstance(inner, Mapping):
        return dict(settings)
    outer = {key: settings[key] for key in ("quantization_config", "quantization") if key in settings}
    return {**inner, **outer, "model_type": f"{kind}_thinker"}


def thinker_config(config: Any) -> Any:
    """A configuration of transformers; of a whole model, the thinker's."""
    return config.thinker_config if config.model_type in WHOLE else config


def thinker_class(kind: str) -> Any:
    """The class of a thinker or of the whole model with it, by their `model_type`; None for other models. It takes what speaks
    in a checkpoint for no surprise."""
    import transformers

    if not (name := WHOLE.get(kind.removesuffix("_thinker"))):
        return None
    found = getattr(transformers, f"{name}ThinkerForConditionalGeneration")
    found._keys_to_ignore_on_load_unexpected = [f"^{re.escape(part)}" for part in SPEAKING]
    return found


def whole_config(config: Any) -> Any:
    """The configuration of the whole model around a thinker's, without the parts that speak; others as they are."""
    import transformers

    if not (kind := whole_kind(config.model_type)):
        return config
    found = getattr(transformers, f"{WHOLE[kind]}Config")(thinker_config=config.to_dict(), enable_audio_output=False)
    found.architectures = [f"{WHOLE[kind]}ForConditionalGeneration"]
    return found

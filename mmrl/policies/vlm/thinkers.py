"""Checkpoints of Qwen2.5-Omni and Qwen3-Omni, which hold a thinker beside a talker and a vocoder: the thinker reads all media and
writes text, and it alone is trained.

A trained thinker is saved in the form of the whole model without the parts that speak, as the published checkpoints that only
write text are (Qwen3-Omni-30B-A3B-Thinking): the config says `enable_audio_output` = false, and weights are named `thinker.*`.
vLLM reads this form alone, and transformers' class of the thinker reads it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

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
    """The class of a thinker or of the whole model with it, by their `model_type`; None for other models."""
    import transformers

    name = WHOLE.get(kind.removesuffix("_thinker"))
    return getattr(transformers, f"{name}ThinkerForConditionalGeneration") if name else None


def whole_config(config: Any) -> Any:
    """The configuration of the whole model around a thinker's, without the parts that speak; others as they are."""
    import transformers

    if not (kind := whole_kind(config.model_type)):
        return config
    found = getattr(transformers, f"{WHOLE[kind]}Config")(thinker_config=config.to_dict(), enable_audio_output=False)
    found.architectures = [f"{WHOLE[kind]}ForConditionalGeneration"]
    return found


def save_model(model: Any, folder: Path | str, state: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write the config and the weights of a model; of a thinker, in the form of the whole model. state: its weights, by default
    those that it holds."""
    import torch
    import transformers

    config = whole_config(model.config)
    if config is model.config:
        model.save_pretrained(folder, state_dict=state)
        return
    with torch.device("meta"):
        whole = getattr(transformers, config.architectures[0])._from_config(config)
    whole.thinker, whole.generation_config = model, model.generation_config
    named = model.state_dict() if state is None else state
    whole.save_pretrained(folder, state_dict={f"{PREFIX}{name}": value for name, value in named.items()})

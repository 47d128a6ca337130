"""Whether ranks can share the rows of a model (`compute.sequence_parallel`), read from its configuration: nothing is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.lora import adapter_chain
from mmrl.policies.vlm import suitability, tiny
from mmrl.policies.vlm.slices import indivisible

SHARABLE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""`model_type` of families of which tests compare shared rows with those of one process."""


def check_sharable(config: PolicyConfig, size: int, online: bool = False) -> None:
    """Raise UserError if so many ranks can't share the rows of `config.model`. online: look a hub name's configuration up, which
    is otherwise left out."""
    _, name = adapter_chain(config.model)
    if not name.startswith("tiny:") and not Path(name).is_dir() and not online:
        return
    settings = _settings(name)
    kind, text = str(settings.get("model_type", "")), {**settings, **(settings.get("text_config") or {})}
    heads = text.get("num_attention_heads") or 1
    why = ""
    if "linear_attention" in (text.get("layer_types") or ()):
        why = "its layers with linear attention have a state, which goes from token to token"
    elif kind not in SHARABLE:
        why = f"tried are {', '.join(SHARABLE)}"
    if why := why or indivisible(size, heads, text.get("num_key_value_heads") or heads):
        raise UserError(
            f"compute.sequence_parallel = {size} can't divide the rows of {name!r}, a {kind} model ({why}): leave it out, or use "
            "another model"
        )


def _settings(name: str) -> dict[str, Any]:
    if not name.startswith("tiny:"):
        return suitability.read_settings(name)
    options = tiny.parse(name, 0)
    found: dict[str, Any] = tiny.skeleton(options["family"], hidden=options["hidden"], layers=options["layers"]).config.to_dict()
    return found

"""Whether ranks can share the rows of a model (`compute.sequence_parallel`), read from its configuration: nothing is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.lora import adapter_chain
from mmrl.policies.vlm import suitability, tiny
from mmrl.policies.vlm.slices import indivisible
from mmrl.policies.vlm.thinkers import thinker_config

OMNI = ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
SHARABLE = (
    *(*QWEN, *OMNI),
    *("aya_vision", "cohere2_vision", "deepseek_vl", "gemma3", "glm46v", "glm4v", "glm4v_moe", "idefics3", "internvl"),
    *("kimi_k25", "llava", "llava_onevision", "mistral3", "ovis2", "smolvlm"),
)
"""`model_type` of families of which tests compare shared rows with those of one process. Not Llama 4, whose layers count the
tokens that they are given."""
BACKBONES = (
    *(f"{kind}_text" for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "gemma3", "glm4v", "glm4v_moe")),
    *("qwen2_5_omni_text", "qwen3_omni_moe_text"),
    *("cohere2", "deepseek_v3", "llama", "mistral", "qwen2", "qwen3"),
)
"""`model_type` of the language models in them."""


def check_sharable(config: PolicyConfig, size: int, online: bool = False) -> None:
    """Raise UserError if so many ranks can't share the rows of `config.model`. online: look a hub name's configuration up, which
    is otherwise left out."""
    _, name = adapter_chain(config.model)
    if not name.startswith("tiny:") and not Path(name).is_dir() and not online:
        return
    settings = _settings(name, config.trust_remote_code)
    kind, text = settings.model_type, settings.get_text_config()
    heads = text.num_attention_heads
    why = ""
    if "linear_attention" in (getattr(text, "layer_types", None) or ()):
        why = "its layers with linear attention have a state, which goes from token to token"
    elif kind not in SHARABLE or text.model_type not in BACKBONES:
        why = f"its layers of {text.model_type} were not tried so; these were: {', '.join(SHARABLE)}"
    if why := why or indivisible(size, heads, getattr(text, "num_key_value_heads", None) or heads):
        raise UserError(
            f"compute.sequence_parallel = {size} can't divide the rows of {name!r}, a {kind} model ({why}): leave it out, or use "
            "another model"
        )


def _settings(name: str, trusted: bool) -> Any:
    """The configuration of a model."""
    if name.startswith("tiny:"):
        options = tiny.parse(name, 0)
        return tiny.skeleton(options["family"], hidden=options["hidden"], layers=options["layers"]).config
    from transformers import AutoConfig

    suitability.read_settings(name)
    return thinker_config(AutoConfig.from_pretrained(name, trust_remote_code=trusted))

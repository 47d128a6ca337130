"""Loading a vision-language model from a folder or the hub, or building a tiny one."""

from __future__ import annotations

import re
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.compute.torchvision import prepare_torchvision
from mmrl.config.sections import PolicyConfig
from mmrl.policies.lora import adapter_chain, merge_saved_adapters
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.families import UNSUPPORTED

MODEL_CURE = "give a folder with a transformers checkpoint, a hub name, or tiny:qwen2_5_vl"


def load(config: PolicyConfig, name: str, seed: int) -> tuple[Any, Any]:
    """(model, processor), with the adapters of a folder that holds some merged. Raises UserError for what can't be loaded."""
    prepare_torchvision()
    adapters, name = adapter_chain(name)
    model, processor = _load_whole(config, name, seed)
    for folder in reversed(adapters):
        merge_saved_adapters(model, folder)
    return model, processor


def model_type(name: str) -> str:
    """`model_type` in the config.json of a folder or hub name; empty if it can't be read."""
    from transformers import PreTrainedConfig

    try:
        return str(PreTrainedConfig.get_config_dict(name)[0].get("model_type", ""))
    except (OSError, ValueError, AttributeError):  # AttributeError: it holds no table
        return ""  # loading reports the error


def auto_class(name: str, trusted: bool) -> Any:
    """The class of transformers that loads the model. Code that comes with a checkpoint often registers its model for
    `AutoModelForCausalLM` alone."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig

    own = PreTrainedConfig.get_config_dict(name)[0].get("auto_map", {}) if trusted else {}
    only_causal = AutoModelForCausalLM.__name__ in own and AutoModelForImageTextToText.__name__ not in own
    return AutoModelForCausalLM if only_causal else AutoModelForImageTextToText


def _load_whole(config: PolicyConfig, name: str, seed: int) -> tuple[Any, Any]:
    dtype = getattr(torch, config.dtype)
    if name.startswith("tiny:"):
        return tiny.build(dtype=dtype, attention=config.attn_implementation, **tiny.parse(name, seed))
    kind = model_type(name)
    if kind in UNSUPPORTED:
        raise UserError(f"{name!r} is a {kind} model: {UNSUPPORTED[kind]}", key="policy.model")
    if kind == "openvla":
        from mmrl.policies.openvla import model as openvla
        from mmrl.policies.openvla import reading

        whole = openvla.load(name, dtype, config.attn_implementation)
        return whole, reading.load_processor(name, whole.config)
    from transformers import AutoProcessor

    options = dict(trust_remote_code=config.trust_remote_code)
    try:
        model = auto_class(name, config.trust_remote_code).from_pretrained(
            name, dtype=dtype, attn_implementation=config.attn_implementation, use_safetensors=True, **options
        )
        processor = AutoProcessor.from_pretrained(name, **options)
    except Exception as err:
        raise UserError(f"{name!r} can't be loaded: {_reason(err, kind)}", key="policy.model") from err
    if processor.tokenizer.eos_token_id is None:
        raise UserError(
            f"{name!r}: its tokenizer names no end-of-sequence token: set eos_token in its config", key="policy.model"
        )
    return model, processor


def _reason(error: Exception, kind: str) -> str:
    """Why loading failed, and what to do."""
    if "Unrecognized configuration class" in str(error):  # followed by a list of all classes that transformers knows
        return f"transformers has no {kind} model that takes pictures and text and writes text: choose another model"
    if "trust_remote_code" in str(error):
        return "it comes with code of its own: set policy.trust_remote_code = true if you trust the code's author"
    if isinstance(error, ImportError) and (package := _missing(error)):
        return f"it needs the Python package {package}: install {package}"
    return f"{shorten(error)[:300]}: {MODEL_CURE}"


def _missing(error: ImportError) -> str:
    """The package for lack of which something can't be imported; empty if that is not the reason."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return error.name.partition(".")[0]
    named = re.search(r"pip install ([\w.-]*\w)", str(error))
    return named[1] if named else ""

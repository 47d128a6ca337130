"""Loading pi0 from a folder or the hub, or building a tiny one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from mmrl.api.errors import UserError, shorten
from mmrl.compute.torchvision import prepare_torchvision
from mmrl.config.sections import PolicyConfig
from mmrl.policies.lora import adapter_chain
from mmrl.policies.names import refuse_path
from mmrl.policies.pi0 import tiny

CURE = "give a folder or hub name of a pi0 that transformers loads, or tiny:pi0"
EMBEDDING = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
TOKENIZER_CURE = "set policy.options.tokenizer to that of PaliGemma, such as google/paligemma-3b-pt-224, or a folder with it"


@cache
def pi0_class() -> Any:
    """transformers' pi0, whose first and last layers stay float32 as openpi's do: an action's numbers go through them."""
    prepare_torchvision()
    from transformers import PI0ForConditionalGeneration

    keep = {"_keep_in_fp32_modules_strict": ["embed_action_time", "action_out_proj"]}
    return type("PI0ForConditionalGeneration", (PI0ForConditionalGeneration,), keep)


def check_model(name: str) -> None:
    """Raise UserError for a `policy.model` that is not a pi0, without loading it. A hub name is not looked up."""
    if name.startswith("tiny:"):
        tiny.parse(name, 0)
    elif Path(name).is_dir():
        _, name = adapter_chain(name)
        if Path(name).is_dir():
            _settings(name)
    else:
        refuse_path(name, CURE)


def load_model(config: PolicyConfig, name: str, tokenizer: str, seed: int) -> tuple[Any, Any]:
    """(the model, its tokenizer). Raises UserError for a model that is not a pi0, lacks weights or has no tokenizer."""
    dtype = getattr(torch, config.dtype)
    if name.startswith("tiny:"):
        return tiny.build(pi0_class(), dtype=dtype, attention=config.attn_implementation, **tiny.parse(name, seed))
    settings = _settings(name)
    try:
        saved = lerobot_file(name)
        model, report = pi0_class().from_pretrained(
            None if saved else name,
            state_dict=_lerobot_weights(saved) if saved else None,
            config=settings,
            dtype=dtype,
            attn_implementation=config.attn_implementation,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise UserError(f"{name!r} can't be loaded: {shorten(error)[:300]}: {CURE}", key="policy.model") from error
    missing = sorted(key for key in report["missing_keys"] if key != "model.dit.embed_tokens.weight")  # which is never used
    if missing:
        raise UserError(f"{name!r} lacks {len(missing)} of pi0's weights, such as {missing[0]}: {CURE}", key="policy.model")
    return model, _tokenizer(name, tokenizer)


def lerobot_file(name: str) -> Path | None:
    """The weights of a policy that LeRobot saved, whose names begin with `model.`; None for other checkpoints, such as those on
    the hub that were converted from openpi's."""
    from transformers.utils import cached_file

    if name.startswith("tiny:"):
        return None
    found = cached_file(name, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if found is None:
        return None
    with safe_open(found, "pt") as file:
        names = file.keys()
    return Path(found) if any(key.startswith("model.paligemma_with_expert.") for key in names) else None


def _lerobot_weights(file: Path) -> dict[str, torch.Tensor]:
    """The weights under the names of the checkpoints on the hub, which transformers knows. Those hold the embedding as `lm_head`.
    LeRobot saves it under its own name, and a head besides that pi0 never uses."""
    weights = {key.removeprefix("model."): tensor for key, tensor in load_file(file).items()}
    if EMBEDDING in weights:
        weights["paligemma_with_expert.paligemma.lm_head.weight"] = weights.pop(EMBEDDING)
    return weights


def skeleton(name: str) -> Any:
    """The model without its weights, which are on torch's meta device."""
    if name.startswith("tiny:"):
        options = tiny.parse(name, 0)
        settings = tiny.config(options["hidden"], options["layers"], options["chunk"])
    else:
        settings = _settings(name)
    with torch.device("meta"):
        return pi0_class()(settings)


def _settings(name: str) -> Any:
    """The configuration; pi0's default for LeRobot's checkpoints, whose config.json has another format."""
    prepare_torchvision()
    from transformers import PI0Config

    try:
        data, _ = PI0Config.get_config_dict(name)
        if not data:
            raise FileNotFoundError("config.json")
    except Exception as error:
        raise UserError(f"{name!r} has no config.json that can be read: {CURE}", key="policy.model") from error
    kind = data.get("model_type", data.get("type"))
    if kind != "pi0":
        raise UserError(f"{name!r} is a {kind or 'model of unknown type'}, not a pi0: {CURE}", key="policy.model")
    try:
        if "model_type" in data:
            return PI0Config.from_pretrained(name)
        return PI0Config(**{key: data[key] for key in ("chunk_size", "max_state_dim", "max_action_dim") if key in data})
    except Exception as error:
        raise UserError(
            f"{name!r}: its config.json is not understood: {shorten(error)[:300]}: {CURE}", key="policy.model"
        ) from error


def _tokenizer(name: str, other: str) -> Any:
    from transformers import AutoTokenizer

    where = other or name
    try:
        found = AutoTokenizer.from_pretrained(where)
    except Exception as error:
        raise UserError(f"{name!r}: no tokenizer in {where!r}: {TOKENIZER_CURE}", key="policy.model") from error
    if found.bos_token_id is None:
        raise UserError(
            f"{name!r}: the tokenizer of {where!r} has no token for a text's beginning: {TOKENIZER_CURE}", key="policy.model"
        )
    return found

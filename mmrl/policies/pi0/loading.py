"""Loading pi0, pi0.5 or pi0-FAST from a folder or the hub, or building a tiny one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from mmrl.api.errors import UserError, shorten
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.options import NONE
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.lora import adapter_chain
from mmrl.policies.names import refuse_path
from mmrl.policies.pi0 import lerobot_names, tiny
from mmrl.policies.pi0.lerobot_layout import Published, config_of, published
from mmrl.policies.pi0.networks import config_class, network_class

EMBEDDING = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
TOKENIZER_CURE = "set policy.options.tokenizer to that of PaliGemma, such as google/paligemma-3b-pt-224, or a folder with it"
OF_CONFIG = ("chunk_size", "max_state_dim", "max_action_dim", "min_period", "max_period")
"""What LeRobot's config.json says of the network."""


def cure(kind: str) -> str:
    layout = "transformers loads" if kind == "pi0" else "is in LeRobot's layout"
    return f"give a folder or hub name of a {kind} that {layout}, or tiny:{kind}"


def check_model(config: PolicyConfig, kind: str) -> None:
    """Raise UserError for a `policy.model` that is not of this kind or lacks statistics, without loading it. A hub name is not
    looked up."""
    name = config.model
    if name.startswith("tiny:"):
        tiny.parse(name, 0, kind)
        return
    if not Path(name).is_dir():
        refuse_path(name, cure(kind))
        return
    name = adapter_chain(name)[1]
    if Path(name).is_dir():
        _settings(name, kind)
        statistics_of(config, published(name), config.options.get("statistics", ""), config.options.get("state", 0))


def statistics_of(
    config: PolicyConfig, files: Published | None, given: str | Mapping[str, Any], state: int
) -> str | Mapping[str, Any]:
    """The value of `policy.options.statistics`, or the statistics among LeRobot's files where it is empty. Raises UserError if
    they are missing. A folder that mmrl saved says by itself which it has."""
    if given == NONE:
        return ""
    if given or files is None or (Path(config.model) / SETTINGS).is_file():
        return given
    found = files.statistics(state)
    return "" if found is None else found.plain()


def load_model(config: PolicyConfig, kind: str, name: str, tokenizer: str, files: Published | None, seed: int) -> tuple[Any, Any]:
    """(the model, its tokenizer). Raises UserError for a model of another kind, one that lacks weights or has no tokenizer."""
    dtype = getattr(torch, config.dtype)
    if name.startswith("tiny:"):
        sizes = tiny.parse(name, seed, kind)
        return tiny.build(network_class(kind), kind, dtype=dtype, attention=config.dense_attention, **sizes)
    settings = _settings(name, kind)
    try:
        saved = lerobot_file(name) if kind == "pi0" else _file(name)
        model, report = network_class(kind).from_pretrained(
            None if saved else name,
            state_dict=_lerobot_weights(saved, kind) if saved else None,
            config=settings,
            dtype=dtype,
            attn_implementation=config.dense_attention,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise UserError(f"{name!r} can't be loaded: {shorten(error, 300)}: {cure(kind)}", key="policy.model") from error
    missing = sorted(key for key in report["missing_keys"] if key != lerobot_names.UNUSED)
    if missing:
        raise UserError(
            f"{name!r} lacks {len(missing)} of {kind}'s weights, such as {missing[0]}: {cure(kind)}", key="policy.model"
        )
    return model, _tokenizer(name, tokenizer, files)


def lerobot_file(name: str) -> Path | None:
    """The weights of a policy that LeRobot saved, whose names begin with `model.`; None for other checkpoints, such as those on
    the hub that were converted from openpi's."""
    found = None if name.startswith("tiny:") else _file(name)
    if found is None:
        return None
    with safe_open(found, "pt") as file:
        names = file.keys()
    return found if any(key.startswith("model.paligemma_with_expert.") for key in names) else None


def _file(name: str) -> Path | None:
    from transformers.utils import cached_file

    found = cached_file(name, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _lerobot_weights(file: Path, kind: str) -> dict[str, torch.Tensor]:
    """For pi0 under the names of the checkpoints on the hub, which transformers knows. Those hold the embedding as `lm_head`.
    LeRobot saves it under its own name, and a head besides that pi0 never uses."""
    if kind != "pi0":
        found = lerobot_names.network_weights(load_file(file), kind)
        found.pop(lerobot_names.UNUSED, None)
        return found
    weights = {key.removeprefix("model."): tensor for key, tensor in load_file(file).items()}
    if EMBEDDING in weights:
        weights["paligemma_with_expert.paligemma.lm_head.weight"] = weights.pop(EMBEDDING)
    return weights


def skeleton(name: str, kind: str) -> Any:
    """The model without its weights, which are on torch's meta device."""
    if name.startswith("tiny:"):
        options = tiny.parse(name, 0, kind)
        settings = tiny.config(kind, options["hidden"], options["layers"], options["chunk"])
    else:
        settings = _settings(name, kind)
    with torch.device("meta"):
        return network_class(kind)(settings)


def _settings(name: str, kind: str) -> Any:
    """The configuration. LeRobot's config.json doesn't have the sizes of the network: they are those of the weights in a folder,
    and the published ones for a hub name."""
    made = config_class(kind)
    try:
        data, _ = made.get_config_dict(name)
        if not data:
            raise FileNotFoundError("config.json")
    except Exception as error:
        raise UserError(f"{name!r} has no config.json that can be read: {cure(kind)}", key="policy.model") from error
    own = data.get("model_type", data.get("type"))
    if own != kind:
        raise UserError(f"{name!r} is a {own or 'model of unknown type'}, not a {kind}: {cure(kind)}", key="policy.model")
    try:
        if config_of(name) is None:
            return made.from_pretrained(name)
        known = {key: data[key] for key in OF_CONFIG if key in data}
        return made(**known, **_sizes(name, kind, data))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{name!r}: its config.json is not understood: {shorten(error, 300)}: {cure(kind)}", key="policy.model"
        ) from error


def _sizes(name: str, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Raises UserError for a file without the weights that say them, before any is allocated."""
    file = Path(name) / "model.safetensors"
    if not file.is_file():
        return {}
    try:
        with safe_open(file, "pt") as opened:
            shapes = {key: opened.get_slice(key).get_shape() for key in opened.keys()}  # noqa: SIM118
        return lerobot_names.sizes(shapes, data.get("image_resolution", [224])[0], kind)
    except KeyError as error:
        raise UserError(
            f"{name!r} lacks weights of a {kind} in LeRobot's layout, such as {error.args[0]}: {cure(kind)}", key="policy.model"
        ) from error
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{name!r} can't be loaded: {shorten(error, 300)}: {cure(kind)}", key="policy.model") from error


def _tokenizer(name: str, other: str, files: Published | None) -> Any:
    """LeRobot's folders have none, and name the one to take."""
    from transformers import AutoTokenizer

    where = other or name
    try:
        found = AutoTokenizer.from_pretrained(where)
    except Exception as error:
        if files is not None and not other:
            return _tokenizer(name, files.tokenizer, None)
        raise UserError(f"{name!r}: no tokenizer in {where!r}: {TOKENIZER_CURE}", key="policy.model") from error
    if found.bos_token_id is None:
        raise UserError(
            f"{name!r}: the tokenizer of {where!r} has no token for a text's beginning: {TOKENIZER_CURE}", key="policy.model"
        )
    return found

"""Loading a SmolVLA from a folder or the hub as LeRobot saves it, building a tiny one, and saving both."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mmrl.api.errors import UserError
from mmrl.policies.acting.flow_noise import weights_without_noise
from mmrl.policies.acting.lerobot_folder import WEIGHTS, read_weights, unreadable
from mmrl.policies.acting.lerobot_processors import ACTION, STATE, Files, norm_map, read_table, statistics_of
from mmrl.policies.acting.units import Statistics
from mmrl.policies.lora import adapter_chain
from mmrl.policies.names import refuse_path
from mmrl.policies.smolvla import tiny
from mmrl.policies.smolvla.config import BACKBONE, SmolVLAConfig, check_backbone, read_config
from mmrl.policies.smolvla.network import Network, float32_where_precise
from mmrl.policies.smolvla.processors import Processors, read_processors, write_processors

CALLED = "a SmolVLA"
CURE = "give a folder or hub name of a SmolVLA that LeRobot saved, or tiny:smolvla"
BACKBONE_CURE = f"set policy.options.backbone to a folder with the config.json and the tokenizer of {BACKBONE}"
INSIDE = "backbone"
"""The folder in which a saved policy keeps the configuration and the tokenizer of its vision-language model."""
UNUSED = "vlm_with_expert.vlm.lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a SmolVLA is, without its weights."""

    name: str
    table: Mapping[str, Any]
    """All of config.json."""
    config: SmolVLAConfig
    backbone: Any
    """transformers' configuration of the vision-language model."""
    tokenizer: Any
    files: Files
    processors: Processors | None
    """None where LeRobot's files are missing."""


def check_model(name: str) -> None:
    """Raise UserError for a `policy.model` that is not a SmolVLA, without loading it. A hub name is not looked up."""
    if name.startswith("tiny:"):
        tiny.parse(name, 0)
    elif Path(name).is_dir():
        _, name = adapter_chain(name)
        if Path(name).is_dir():
            _table(Files(name))
    else:
        refuse_path(name, CURE)


def check_statistics(name: str, dims: Any, state: Any) -> None:
    """Raise UserError for a folder without statistics of its data. dims, state: options, None where the folder says them."""
    files = Files(name)
    try:
        config = read_config(_table(files))
    except UserError as error:
        raise unreadable(name, error, CURE) from error
    dims = dims if isinstance(dims, int) else config.numbers(ACTION)
    statistics_of(files, read_processors(files), dims, state if isinstance(state, int) else config.numbers(STATE))


def open_checkpoint(name: str, backbone: str = "", words: bool = True) -> Checkpoint:
    """Read all but the weights. backbone: see the option of `SmolVLA`. words: whether the tokenizer is needed. Raises UserError
    for what is not a SmolVLA or lacks a part."""
    if name.startswith("tiny:"):
        config, vlm, tokenizer = tiny.parts(name)
        table: Mapping[str, Any] = {"type": "smolvla", **dataclasses.asdict(config)}
        return Checkpoint(
            name=name, table=table, config=config, backbone=vlm, tokenizer=tokenizer, files=Files(name), processors=Processors()
        )
    files = Files(name)
    table = _table(files)
    try:
        config = read_config(table)
        processors = read_processors(files)
        inside = Path(name) / INSIDE
        where = backbone or (str(inside) if inside.is_dir() else config.vlm_model_name)
        vlm = _backbone(name, where)
        check_backbone(config, vlm)
    except (OSError, UserError) as error:
        raise unreadable(name, error, CURE) from error
    tokenizer = _tokenizer(name, where) if words else None
    return Checkpoint(
        name=name, table=table, config=config, backbone=vlm, tokenizer=tokenizer, files=files, processors=processors
    )


def load_network(found: Checkpoint, seed: int, dtype: torch.dtype, attention: str) -> Network:
    """The network with its weights, or with random ones for a tiny model. Raises UserError for weights that don't fit."""
    if found.name.startswith("tiny:"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(tiny.parse(found.name, seed)["seed"])
            network = Network(found.config, found.backbone, attention)
        float32_where_precise(network, dtype)
        return network
    network = skeleton(found, attention)
    weights = read_weights(found.files, network.state_dict(), CALLED, CURE, renamed=_network_weights)
    network.load_state_dict(weights, assign=True)
    network.requires_grad_(True)
    float32_where_precise(network, dtype)
    return network


def _network_weights(saved: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A file's weights by the network's names, without the head that is never used."""
    named = {name.removeprefix("model."): weight for name, weight in saved.items()}
    return {name: weight for name, weight in named.items() if name != UNUSED}


def skeleton(found: Checkpoint, attention: str = "sdpa") -> Network:
    """The network without its weights, which are on torch's meta device."""
    with torch.device("meta"):
        return Network(found.config, found.backbone, attention)


def save_network(
    network: Network,
    folder: Path,
    found: Checkpoint,
    statistics: Statistics | None,
    *,
    chunk: int,
    steps: int,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    renamed: Mapping[str, str],
) -> None:
    """Write a folder that LeRobot loads, with the configuration and the tokenizer of its vision-language model inside. Its
    config.json goes on naming the vision-language model that it named, which LeRobot asks for; a tiny one, or one whose folder is
    gone, names the folder inside, by its path of now. inputs, outputs: LeRobot's features. renamed: key of an observation -> the
    network's."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = folder / INSIDE
    found.backbone.save_pretrained(inside)
    found.tokenizer.save_pretrained(inside)
    vlm = found.config.vlm_model_name
    if vlm.startswith("tiny:") or (vlm.startswith(("/", ".", "~")) and not Path(vlm).is_dir()):
        _save_image_processors(inside)
        vlm = str(inside.resolve())
    table = {
        **found.table,
        "type": "smolvla",
        "chunk_size": found.config.chunk_size,
        "n_action_steps": chunk,
        "num_steps": steps,
        "normalization_mapping": norm_map(statistics),
        "input_features": dict(inputs),
        "output_features": dict(outputs),
        "vlm_model_name": vlm,
        "load_vlm_weights": False,
    }
    (folder / "config.json").write_text(json.dumps(table, indent=4), encoding="utf-8")
    weights = {f"model.{name}": weight.detach().contiguous() for name, weight in weights_without_noise(network).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    said = found.processors or Processors(longest=found.config.tokenizer_max_length)
    said = dataclasses.replace(said, tokenizer=vlm, renamed=renamed)
    write_processors(folder, said, statistics, inputs, outputs)


def _save_image_processors(folder: Path) -> None:
    """LeRobot loads the whole processor of a vision-language model, of which it uses the tokenizer alone."""
    from transformers import SmolVLMImageProcessor, SmolVLMVideoProcessor

    SmolVLMImageProcessor().save_pretrained(folder)
    SmolVLMVideoProcessor().save_pretrained(folder)


def _table(files: Files) -> Mapping[str, Any]:
    return read_table(files, "smolvla", CALLED, CURE)


def _backbone(name: str, where: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(where)
    except Exception as error:
        raise UserError(
            f"{name!r}: the config.json of its vision-language model can't be read in {where!r}: {BACKBONE_CURE}",
            key="policy.model",
        ) from error


def _tokenizer(name: str, where: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(where)
    except Exception as error:
        raise UserError(f"{name!r}: no tokenizer in {where!r}: {BACKBONE_CURE}", key="policy.model") from error

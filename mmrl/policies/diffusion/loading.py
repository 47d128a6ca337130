"""Loading a Diffusion Policy from a folder or the hub as LeRobot saves it, building a tiny one, and saving both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mmrl.api.errors import UserError, shorten
from mmrl.policies.acting.lerobot_processors import (
    BEFORE,
    LISTS,
    OLD_CURE,
    Files,
    Processors,
    Step,
    lists_of,
    norm_map,
    read_steps,
    read_table,
    statistics_of,
    write_steps,
)
from mmrl.policies.acting.units import Statistics
from mmrl.policies.diffusion import tiny
from mmrl.policies.diffusion.config import STATE, DiffusionConfig, read_config
from mmrl.policies.diffusion.network import Network
from mmrl.policies.names import refuse_path
from mmrl.policies.shard import model_state_dict

CURE = "give a folder or hub name of a Diffusion Policy that LeRobot saved, or tiny:diffusion"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a Diffusion Policy is, without its weights."""

    name: str
    table: Mapping[str, Any]
    """All of config.json."""
    config: DiffusionConfig
    files: Files
    processors: Processors | None
    """None where LeRobot's files are missing."""


def check_model(name: str) -> None:
    """Raise UserError for a `policy.model` that is not a Diffusion Policy, without loading it. A hub name is not looked up."""
    if name.startswith("tiny:"):
        tiny.parse(name, 0)
    elif Path(name).is_dir():
        open_checkpoint(name)
    else:
        refuse_path(name, CURE)


def check_statistics(name: str) -> None:
    """Raise UserError for a folder without statistics of its data."""
    found = open_checkpoint(name)
    statistics_of(found.files, found.processors, found.config.numbers("action"), found.config.numbers(STATE))


def open_checkpoint(name: str) -> Checkpoint:
    """Read all but the weights of a folder or hub name. Raises UserError for what is not a Diffusion Policy or lacks a part."""
    files = Files(name)
    table = _table(files)
    try:
        config = read_config(table)
        read = read_steps(files)
        processors = read[0] if read else None
        _check_pictures(config, processors)
    except OSError as error:
        raise UserError(f"{name!r} can't be read: {shorten(error)[:300]}: {CURE}", key="policy.model") from error
    except UserError as error:
        raise error if error.key else UserError(f"{name!r}: {error}: {CURE}", key="policy.model") from error
    return Checkpoint(name=name, table=table, config=config, files=files, processors=processors)


def _table(files: Files) -> Mapping[str, Any]:
    return read_table(files, tiny.FAMILY, "Diffusion Policy", CURE)


def _check_pictures(config: DiffusionConfig, found: Processors | None) -> None:
    """Raise UserError for a way of normalising pictures, or what is around the robot, that can't be done here."""
    if found is None:
        return
    if (norm := found.before.norms.get("ENV", "IDENTITY")) != "IDENTITY":
        raise UserError(f"{BEFORE} normalises the environment's state by {norm}, which can't be done here")
    norm = found.before.norms.get("VISUAL", "IDENTITY")
    if norm not in ("IDENTITY", "MEAN_STD", "MIN_MAX"):
        raise UserError(f"{BEFORE} normalises pictures by {norm}, which can't be done here")
    for key in config.cameras if norm != "IDENTITY" else ():
        for end in LISTS[norm]:
            if (there := found.before.lists.get(f"{key}.{end}")) is None or there.numel() != 3:
                raise UserError(f"{found.before.file or BEFORE} has no {end} of the three colours of {key}")


def pixel_scales(found: Checkpoint) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Key of a camera -> (what is subtracted from its pixels in [0, 1], by what they are divided), [3, 1, 1] each, as LeRobot
    normalises them; empty where it doesn't."""
    before = found.processors.before if found.processors else Step()
    norm, scales = before.norms.get("VISUAL", "IDENTITY"), {}
    for key in found.config.cameras if norm != "IDENTITY" else ():
        first, second = (before.lists[f"{key}.{end}"].float().view(3, 1, 1) for end in LISTS[norm])
        if norm == "MIN_MAX":
            half = torch.where(second == first, 1e-8, second - first) / 2
            scales[key] = (first + half, half)
        else:
            scales[key] = (first, second + 1e-8)
    return scales


def load_network(found: Checkpoint, seed: int) -> Network:
    """The network with its weights, or with random ones for a tiny model. Raises UserError for weights that don't fit."""
    if found.name.startswith("tiny:"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(tiny.parse(found.name, seed)["seed"])
            return Network(found.config)
    network = skeleton(found)
    try:
        file = found.files.get(WEIGHTS)
        weights = load_file(file) if file else {}
    except Exception as error:
        raise UserError(f"{found.name!r} can't be loaded: {shorten(error)[:300]}: {CURE}", key="policy.model") from error
    own = network.state_dict()
    if missing := sorted(own.keys() - weights.keys()):
        raise UserError(
            f"{found.name!r} lacks {len(missing)} of a Diffusion Policy's weights, such as {missing[0]}: {CURE}",
            key="policy.model",
        )
    if odd := sorted(weights.keys() - own.keys()):
        cure = OLD_CURE if "normalize_" in odd[0] else CURE
        raise UserError(f"{found.name!r} has {len(odd)} weights too many, such as {odd[0]}: {cure}", key="policy.model")
    for name, weight in own.items():
        if weights[name].shape != weight.shape:
            there, here = list(weights[name].shape), list(weight.shape)
            raise UserError(f"{found.name!r}: {name} is {there}, and {here} by its config.json: {CURE}", key="policy.model")
    network.load_state_dict({n: w.float() if w.is_floating_point() else w for n, w in weights.items()}, assign=True)
    network.requires_grad_(True)
    return network


def skeleton(found: Checkpoint) -> Network:
    """The network without its weights, which are on torch's meta device."""
    with torch.device("meta"):
        return Network(found.config)


def save_network(
    network: Network, folder: Path, found: Checkpoint, statistics: Statistics | None, renamed: Mapping[str, str], **changed: Any
) -> None:
    """Write a folder that LeRobot loads. renamed: key of an observation -> the network's. changed: fields of config.json."""
    config, before = found.config, found.processors.before if found.processors else None
    norms, lists = norm_map(statistics), lists_of(statistics)
    if before is not None:
        norms["VISUAL"] = before.norms.get("VISUAL", "IDENTITY")
        lists = {key: x for key, x in before.lists.items() if key.rpartition(".")[0] in config.cameras} | lists
    inputs, outputs = dict(config.input_features), dict(config.output_features)
    table = {**found.table, **changed, "normalization_mapping": norms}
    (folder / "config.json").write_text(json.dumps(table, indent=4), encoding="utf-8")
    weights = {name: weight.contiguous() for name, weight in model_state_dict(network).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    write_steps(folder, renamed, norms, lists, inputs, outputs)

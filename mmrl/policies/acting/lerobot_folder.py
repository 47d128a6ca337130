"""Folders of LeRobot's policies: what is in one apart from the weights, its weights, and how both are written for small ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmrl.api.errors import UserError, shorten
from mmrl.policies.acting.lerobot_config import Features
from mmrl.policies.acting.lerobot_processors import (
    ACTION,
    BEFORE,
    LISTS,
    OLD_CURE,
    STATE,
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
from mmrl.policies.names import refuse_path
from mmrl.policies.shard import model_state_dict

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A policy of LeRobot's, as its folders are."""

    family: str
    """Its type in config.json, and the family of its tiny model."""
    called: str
    """How a person calls it, with an article."""
    cure: str
    """What to do about a model that is another."""
    read_config: Callable[[Mapping[str, Any]], Features]
    parse: Callable[[str, int], dict[str, int]]
    """(name of a tiny model, seed) -> its sizes and seed."""
    tiny: Callable[[str, Sequence[str], int, int], tuple[Features, dict[str, Any]]]
    """(its name, LeRobot's keys of its cameras, numbers of the simulator's state, numbers of an action) -> (its configuration,
    the same as a table)."""
    network: Callable[[Any], nn.Module]
    """By its configuration, with random weights."""
    prefix: str = ""
    """Beginning of the weights' names in a file, before the network's own."""

    def check(self, name: str) -> None:
        """Raise UserError for a `policy.model` that is another, without loading it. A hub name is not looked up."""
        if name.startswith("tiny:"):
            self.parse(name, 0)
        elif Path(name).is_dir():
            self.open(name)
        else:
            refuse_path(name, self.cure)

    def check_statistics(self, name: str) -> None:
        """Raise UserError for a folder without statistics of its data."""
        found = self.open(name)
        statistics_of(found.files, found.processors, found.config.numbers(ACTION), found.config.numbers(STATE))

    def open(self, name: str) -> Checkpoint:
        """Read all but the weights of a folder or hub name. Raises UserError for what is another policy or lacks a part."""
        files = Files(name)
        table = read_table(files, self.family, self.called, self.cure)
        try:
            config = self.read_config(table)
            read = read_steps(files)
            processors = read[0] if read else None
            _check_pictures(config, processors)
        except (OSError, UserError) as error:
            raise unreadable(name, error, self.cure) from error
        return Checkpoint(name=name, table=table, config=config, files=files, processors=processors)

    def load(self, found: Checkpoint, seed: int) -> Any:
        """The network with its weights, in float32, or with random ones for a tiny model. Raises UserError for weights that don't
        fit."""
        if found.name.startswith("tiny:"):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.parse(found.name, seed)["seed"])
                return self.network(found.config)
        with torch.device("meta"):
            network = self.network(found.config)
        own = {self.prefix + name: weight for name, weight in network.state_dict().items()}
        weights = read_weights(found.files, own, self.called, self.cure)
        network.load_state_dict(
            {n.removeprefix(self.prefix): w.float() if w.is_floating_point() else w for n, w in weights.items()}, assign=True
        )
        return network.requires_grad_(True)

    def save(
        self,
        network: nn.Module,
        folder: Path,
        found: Checkpoint,
        statistics: Statistics | None,
        renamed: Mapping[str, str],
        **changed: Any,
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
        weights = {self.prefix + name: weight.contiguous() for name, weight in model_state_dict(network).items()}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        write_steps(folder, renamed, norms, lists, inputs, outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a policy is, without its weights."""

    name: str
    table: Mapping[str, Any]
    """All of config.json."""
    config: Any
    """Its `Features` and the sizes of its network."""
    files: Files
    processors: Processors | None = None
    """None where LeRobot's files are missing."""

    def pixel_scales(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Key of a camera -> (what is subtracted from its pixels in [0, 1], by what they are divided), [3, 1, 1] each, as LeRobot
        normalises them; empty where it doesn't."""
        before = self.processors.before if self.processors else Step()
        norm, scales = before.norms.get("VISUAL", "IDENTITY"), {}
        for key in self.config.cameras if norm != "IDENTITY" else ():
            first, second = (before.lists[f"{key}.{end}"].float().view(3, 1, 1) for end in LISTS[norm])
            if norm == "MIN_MAX":
                half = torch.where(second == first, 1e-8, second - first) / 2
                scales[key] = (first + half, half)
            else:
                scales[key] = (first, second + 1e-8)
        return scales


def unreadable(name: str, error: OSError | UserError, cure: str) -> UserError:
    """The error of a checkpoint's small files with its name, which those about its config.json lack."""
    if isinstance(error, OSError):
        return UserError(f"{name!r} can't be read: {shorten(error, 300)}: {cure}", key="policy.model")
    return error if error.key else UserError(f"{name!r}: {error}: {cure}", key="policy.model")


def read_weights(
    files: Files,
    own: Mapping[str, torch.Tensor],
    called: str,
    cure: str,
    *,
    renamed: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict,
    sized_by: str = "its config.json",
) -> dict[str, torch.Tensor]:
    """The weights in a checkpoint's file, by the network's names. own: the network's, whose shapes count. called, cure: see
    `read_table`. renamed: the file's weights by the network's names. sized_by: what the network's shapes follow from. Raises
    UserError for weights that can't be read or don't fit."""
    try:
        file = files.get(WEIGHTS)
        found = renamed(load_file(file)) if file else {}
    except Exception as error:
        raise UserError(f"{files.name!r} can't be loaded: {shorten(error, 300)}: {cure}", key="policy.model") from error
    if missing := sorted(own.keys() - found.keys()):
        lacks = f"lacks {len(missing)} of {called}'s weights, such as {missing[0]}"
        raise UserError(f"{files.name!r} {lacks}: {cure}", key="policy.model")
    if odd := sorted(found.keys() - own.keys()):
        cure = OLD_CURE if "normalize_" in odd[0] else cure
        raise UserError(f"{files.name!r} has {len(odd)} weights too many, such as {odd[0]}: {cure}", key="policy.model")
    for name, weight in own.items():
        if found[name].shape != weight.shape:
            there, here = list(found[name].shape), list(weight.shape)
            raise UserError(f"{files.name!r}: {name} is {there}, and {here} by {sized_by}: {cure}", key="policy.model")
    return found


def _check_pictures(config: Features, found: Processors | None) -> None:
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

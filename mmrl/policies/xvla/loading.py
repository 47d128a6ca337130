"""Loading an X-VLA from a folder or the hub, as LeRobot or its authors save it, building a tiny one, and saving both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mmrl.api.errors import UserError
from mmrl.policies.acting.flow_noise import weights_without_noise
from mmrl.policies.acting.lerobot_folder import WEIGHTS, read_weights, unreadable
from mmrl.policies.acting.lerobot_processors import Files, norm_map, read_table
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.acting.units import Statistics
from mmrl.policies.lora import adapter_chain
from mmrl.policies.names import refuse_path
from mmrl.policies.xvla import tiny
from mmrl.policies.xvla.config import CALLED, SIDE, XVLAConfig, florence_of, of_authors, read_config
from mmrl.policies.xvla.names import network_weights, saved_weights
from mmrl.policies.xvla.network import PLACES, Network, typed
from mmrl.policies.xvla.processors import Processors, read_processors, write_processors
from mmrl.policies.xvla.spaces import Space

CURE = "give a folder or hub name of an X-VLA that LeRobot or its authors saved, or tiny:xvla"
TOKENIZER_CURE = "set policy.options.tokenizer to a folder or hub name with the tokenizer of facebook/bart-large"
INSIDE = "tokenizer"
"""The folder in which a saved policy keeps its tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What an X-VLA is, without its weights."""

    name: str
    table: Mapping[str, Any]
    """All of config.json."""
    config: XVLAConfig
    florence: Any
    """transformers' configuration of Florence-2."""
    tokenizer: Any
    files: Files
    processors: Processors | None
    """None where LeRobot's files are missing."""

    @property
    def published(self) -> bool:
        """Whether it is in the layout of X-VLA's authors."""
        return of_authors(self.table)

    @property
    def words(self) -> int:
        """L: tokens to which a text is filled up or cut."""
        return self.processors.longest if self.processors else self.config.tokenizer_max_length

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width to which pictures are scaled; None where they aren't."""
        return (SIDE, SIDE) if self.published else self.config.resize_imgs_with_padding


def check_model(name: str) -> None:
    """Raise UserError for a `policy.model` that is not an X-VLA, without loading it. A hub name is not looked up."""
    if name.startswith("tiny:"):
        tiny.parse(name, 0)
    elif Path(name).is_dir():
        name = base_of(name)[1]
        if Path(name).is_dir():
            open_checkpoint(name, words=False)
    else:
        refuse_path(name, CURE)


def base_of(name: str) -> tuple[list[Path], str]:
    """`adapter_chain`. Raises UserError for adapters that mmrl didn't save: peft's files of X-VLA name the layers of its authors,
    and hold weights of domains beside them."""
    folders, base = adapter_chain(name)
    for folder in folders:
        if not (folder / SETTINGS).is_file():
            raise UserError(
                f"{folder} has adapters of an X-VLA that mmrl didn't save: merge them by peft (merge_and_unload) in the code "
                "that trained them, and give the folder of the whole model",
                key="policy.model",
            )
    return folders, base


def open_checkpoint(name: str, tokenizer: str = "", words: bool = True) -> Checkpoint:
    """Read all but the weights. tokenizer: see the option of `XVLA`. words: whether a tokenizer is needed. Raises UserError for
    what is not an X-VLA or lacks a part."""
    if name.startswith("tiny:"):
        table, made = tiny.parts(name)
        config = read_config(table)
        own = Processors(longest=config.tokenizer_max_length, tokenizer=name)
        florence = florence_of(table)
        return Checkpoint(
            name=name, table=table, config=config, florence=florence, tokenizer=made, files=Files(name), processors=own
        )
    files = Files(name)
    table = dict(read_table(files, "xvla", CALLED, CURE))
    try:
        config, florence = read_config(table), florence_of(table)
        processors = Processors(longest=config.tokenizer_max_length) if of_authors(table) else read_processors(files)
    except (OSError, UserError) as error:
        raise unreadable(name, error, CURE) from error
    named = (processors.tokenizer if processors else "") or config.tokenizer_name
    made = _tokenizer(name, tokenizer, files, named) if words else None
    if made is not None and len(made) > florence.text_config.vocab_size:
        raise UserError(
            f"{name!r}: its tokenizer has {len(made)} words, and Florence-2 {florence.text_config.vocab_size}: {TOKENIZER_CURE}",
            key="policy.model",
        )
    return Checkpoint(
        name=name, table=table, config=config, florence=florence, tokenizer=made, files=files, processors=processors
    )


def load_network(found: Checkpoint, space: Space, seed: int, dtype: torch.dtype, attention: str) -> Network:
    """The network with its weights, or with random ones for a tiny model. Raises UserError for weights that don't fit."""
    if found.name.startswith("tiny:"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(tiny.parse(found.name, seed)["seed"])
            network = Network(found.config, found.florence, space, attention)
        typed(network, dtype)
        return network
    network = skeleton(found, space, attention)
    sized_by = f"its config.json and the action space {space.mode}"
    weights = read_weights(found.files, network.state_dict(), CALLED, CURE, renamed=network_weights, sized_by=sized_by)
    network.load_state_dict(weights, assign=True)
    for name, weight in network.named_parameters():
        weight.requires_grad_(name != PLACES)
    typed(network, dtype)
    return network


def skeleton(found: Checkpoint, space: Space, attention: str = "sdpa") -> Network:
    """The network without its weights, which are on torch's meta device."""
    with torch.device("meta"):
        return Network(found.config, found.florence, space, attention)


def save_network(
    network: Network,
    folder: Path,
    found: Checkpoint,
    space: Space,
    statistics: Statistics | None,
    *,
    domain: int,
    chunk: int,
    steps: int,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    renamed: Mapping[str, str],
) -> None:
    """Write a folder that LeRobot loads, with the tokenizer inside. Its config.json goes on naming the tokenizer that it named; a
    tiny one, or one whose folder is gone, names the folder inside, by its path of now. inputs, outputs: LeRobot's features.
    renamed: key of an observation -> the network's."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = folder / INSIDE
    found.tokenizer.save_pretrained(inside)
    config, processors = found.config, found.processors or Processors()
    tokenizer = processors.tokenizer or config.tokenizer_name
    if tokenizer.startswith("tiny:") or (tokenizer.startswith(("/", ".", "~")) and not Path(tokenizer).is_dir()):
        tokenizer = str(inside.resolve())
    own_fields = {
        "florence_config",
        *(one.name for one in fields(XVLAConfig)),
    }  # those of transformers are no fields of LeRobot's
    kept = {name: value for name, value in found.table.items() if not found.published or name in own_fields}
    table = {
        **kept,
        "type": "xvla",
        "chunk_size": config.chunk_size,
        "n_action_steps": chunk,
        "num_denoising_steps": steps,
        "action_mode": space.mode,
        "max_state_dim": config.max_state_dim,
        "num_image_views": config.views,
        "resize_imgs_with_padding": list(found.sides) if found.sides else None,
        "tokenizer_name": tokenizer,
        "tokenizer_max_length": found.words,
        "normalization_mapping": norm_map(statistics),
        "input_features": dict(inputs),
        "output_features": dict(outputs),
    }
    (folder / "config.json").write_text(json.dumps(table, indent=4), encoding="utf-8")
    save_file(saved_weights(weights_without_noise(network)), folder / WEIGHTS, metadata={"format": "pt"})
    written = replace(processors, renamed=renamed, longest=found.words, tokenizer=tokenizer, domain=domain)
    write_processors(folder, written, statistics, inputs, outputs)


def _tokenizer(name: str, asked: str, files: Files, named: str) -> Any:
    """The option's, or the one inside the folder, or the one that the checkpoint names; X-VLA's authors put theirs beside the
    weights."""
    from transformers import AutoTokenizer

    inside = Path(name) / INSIDE
    beside = name if files.get("tokenizer_config.json") else named
    where = asked or (str(inside) if inside.is_dir() else beside)
    try:
        return AutoTokenizer.from_pretrained(where)
    except Exception as error:
        raise UserError(f"{name!r}: no tokenizer in {where!r}: {TOKENIZER_CURE}", key="policy.model") from error

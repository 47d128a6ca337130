"""The files of a network: config.json and weights, as NVIDIA or LeRobot has them.

They hold the weights of the backbone below `backbone.model.` and don't hold its sizes: config.json names the model that it was
made from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mmrl.api.errors import UserError, shorten
from mmrl.policies.acting.flow_noise import is_noise
from mmrl.policies.gr00t import lerobot_layout
from mmrl.policies.gr00t.backbone import Network, backbone_config
from mmrl.policies.gr00t.config import N1_6, N1_7, TAKE, HeadConfig, Version, head_config, version_of
from mmrl.policies.gr00t.eagle import MERGE, EagleNetwork, eagle_config
from mmrl.policies.gr00t.head import FLOAT32
from mmrl.policies.gr00t.hub import CONFIG
from mmrl.policies.gr00t.pictures import Framing, framing

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PREFIXES = {
    N1_7.kind: {"backbone.": "backbone.model.model."},
    N1_6.kind: {
        "backbone.vision_model.": "backbone.model.vision_model.vision_model.",
        "backbone.projector.": "backbone.model.mlp1.",
        "backbone.language_model.": "backbone.model.language_model.model.",
    },
}
"""By `model_type`: beginnings of names in a network, and in its files."""
IDLE = {
    N1_7.kind: ("backbone.model.lm_head.",),
    N1_6.kind: ("backbone.model.language_model.lm_head.", "backbone.model.vision_model.vision_model.head."),
}
"""Weights of files that are not used: first the head of the language model, a copy of its embeddings, which files have both or
one of; then what makes one vector of a picture."""
EMBEDDINGS = "backbone.language_model.embed_tokens.weight"
OWN_BACKBONE = "backbone"
"""A folder beside the weights with the Qwen3-VL's configuration and processor, where mmrl has saved them; published checkpoints
have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What config.json says of a network."""

    table: dict[str, Any]
    """config.json as it is."""
    head: HeadConfig
    backbone: Any
    """The configuration of the Qwen3-VL, or of N1.6's Eagle."""
    backbone_name: str = ""
    """A folder or hub name with that configuration and its processor."""
    lerobot: Mapping[str, bytes] = field(default_factory=dict)
    """LeRobot's files beside the weights, if it saved them."""

    @property
    def version(self) -> Version:
        return version_of(self.table)

    @property
    def layers(self) -> int:
        """Layers of its language model that are used."""
        found: int = self.table.get("select_layer", 16)
        return found

    def framing(self, settings: Mapping[str, Any]) -> Framing:
        """settings: `processor_kwargs` of processor_config.json. Eagle's pictures are whole tokens wide and high."""
        unit = self.backbone.vision_config.patch_size * MERGE if self.version is N1_6 else 1
        return framing(settings, self.version, unit)

    def network(self, attention: str = "sdpa") -> Network:
        """A network with random weights."""
        kind = EagleNetwork if self.version is N1_6 else Network
        return kind(self.backbone, self.head, self.layers, attention)


def read_plan(folder: Path) -> Plan:
    """Raises UserError for a folder that holds no GR00T, or one of another layout."""
    try:
        table, places, lerobot = json.loads((folder / CONFIG).read_text(encoding="utf-8")), [folder], dict[str, bytes]()
        if tuned := lerobot_layout.table_of(folder):
            table, base = lerobot_layout.base_of(folder, tuned)
            places, lerobot = [folder, base] if base else [folder], lerobot_layout.kept_files(folder)
        version = version_of(table)
        own = [str(place / OWN_BACKBONE) for place in places if (place / OWN_BACKBONE).is_dir()]
        name = own[0] if own else str(table.get("model_name", version.model_name))
        backbone = eagle_config(name) if version is N1_6 else backbone_config(name)
        plan = Plan(table=table, head=head_config(table, version), backbone=backbone, backbone_name=name, lerobot=lerobot)
        with torch.device("meta"):
            plan.network()
    except UserError as error:
        raise UserError(f"{str(folder)!r}: {error.what}", key="policy.model") from error
    except Exception as error:
        raise UserError(f"{str(folder)!r} can't be read: {shorten(error, 300)}: {TAKE}", key="policy.model") from error
    return plan


def load_network(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Network:
    """The network of a folder with a GR00T. Raises UserError for a folder that holds none, and for weights that are missing,
    left over or of another shape than in config.json."""
    plan = read_plan(folder)
    with torch.device("meta"):
        wanted = {name: tuple(p.shape) for name, p in plan.network().named_parameters()}
    try:
        weights = _weights(folder, plan.version.kind)
    except Exception as error:
        raise UserError(f"{str(folder)!r} can't be read: {shorten(error, 300)}: {TAKE}", key="policy.model") from error
    odd = sorted(
        name for name in wanted.keys() | weights.keys() if name not in weights or wanted.get(name) != weights[name].shape
    )
    if odd:
        there = list(weights[odd[0]].shape) if odd[0] in weights else "missing"
        here = list(wanted[odd[0]]) if odd[0] in wanted else "unknown"
        more = f" (and {len(odd) - 1} more weights)" if len(odd) > 1 else ""
        what = f"{_published_name(odd[0], plan.version.kind)} is {there} in its files and {here} by its config.json{more}"
        raise UserError(f"{str(folder)!r}: {what}: take both from one checkpoint", key="policy.model")
    with torch.random.fork_rng(devices=[]):  # once more with buffers, such as rotary frequencies, which no file has
        from transformers import initialization

        with initialization.no_init_weights():
            whole = plan.network(attention)
    # copied: where a tensor begins in a mapped file decides which instructions compute with it, and the last bits of gradients
    own = {name: weights.pop(name).to(dtype_of(name, dtype), copy=True) for name in list(weights)}
    whole.load_state_dict(own, strict=False, assign=True)
    return whole.eval()


def dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a weight in a network of this one."""
    parts = name.split(".")
    return torch.promote_types(dtype, torch.float32) if parts[0] == "action_head" and parts[1] in FLOAT32 else dtype


def save_network(network: Network, table: Mapping[str, Any], folder: Path, lerobot: Mapping[str, bytes] | None = None) -> None:
    """Write config.json and the weights under their published names, and the backbone's own configuration beside them. lerobot:
    files of LeRobot's, whose layout is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    file = lerobot_layout.BASE if lerobot else CONFIG
    (folder / file).write_text(json.dumps(dict(table), indent=2), encoding="utf-8")
    for name, content in (lerobot or {}).items():
        (folder / name).write_bytes(content)
    begin = lerobot_layout.PREFIX if lerobot else ""
    network.backbone.config.save_pretrained(folder / OWN_BACKBONE)
    kind = version_of(table).kind
    weights = {begin + _published_name(n, kind): w for n, w in network.named_parameters() if not is_noise(n)}
    save_file({name: w.detach().contiguous() for name, w in weights.items()}, folder / SINGLE, metadata={"format": "pt"})


def _weights(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """The tensors of the files, under the network's names. kind: see `PREFIXES`."""
    index = folder / INDEX
    named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else [SINGLE]
    found, tied = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for file in sorted(set(named)):
        with safe_open(folder / file, "pt") as opened:
            for key in opened.keys():  # noqa: SIM118
                name = key.removeprefix(lerobot_layout.PREFIX)
                if name == f"{IDLE[kind][0]}weight":
                    tied[EMBEDDINGS] = opened.get_tensor(key)
                elif not name.startswith(IDLE[kind]):
                    found[_own_name(name, kind)] = opened.get_tensor(key)
    return tied | found


def _own_name(name: str, kind: str) -> str:
    for own, published in PREFIXES[kind].items():
        if name.startswith(published):
            return own + name.removeprefix(published)
    return name


def _published_name(name: str, kind: str) -> str:
    for own, published in PREFIXES[kind].items():
        if name.startswith(own):
            return published + name.removeprefix(own)
    return name

"""The files of an OpenVLA-OFT checkpoint beside the model's own (Kim, Finn and Liang, Fine-Tuning Vision-Language-Action Models:
Optimizing Speed and Success): an action head, a projector of the robot's state, statistics of the data.

Layout: `save_training_checkpoint` of vla-scripts/finetune.py and `find_checkpoint_file` of experiments/robot/openvla_utils.py at
213c5ff of moojink/openvla-oft.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.api.errors import UserError, shorten

HEAD, STATE = "action_head", "proprio_projector"
UNSUPPORTED = {"noisy_action_projector": "a diffusion head", "vision_backbone": "FiLM in its towers"}
"""Component -> what a checkpoint with it has that can't be read."""
STATISTICS = "dataset_statistics.json"
CURE = "take all files from one checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The component files of a checkpoint."""

    head: Path | None = None
    state: Path | None = None

    def __bool__(self) -> bool:
        return self.head is not None or self.state is not None

    @property
    def state_numbers(self) -> int:
        """Numbers of the state that the projector reads; 0 without one."""
        return 0 if self.state is None else _shape(self.state, "fc1.weight")[1]

    @property
    def action_numbers(self) -> int:
        """Numbers of an action that the head predicts; 0 without one."""
        return 0 if self.head is None else _shape(self.head, "model.fc2.weight")[0]


def components_of(name: str) -> Components:
    """The component files of a checkpoint, by folder or hub name. Raises UserError if there are several of one kind, or one that
    can't be read."""
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, allow_patterns=["*_checkpoint.pt"]))
        except Exception as error:
            raise UserError(f"{name!r} can't be loaded: {shorten(error, 300)}", key="policy.model") from error
    found: dict[str, Path] = {}
    for kind in (HEAD, STATE, *UNSUPPORTED):
        files = sorted(folder.glob(f"{kind}*checkpoint*.pt"))
        if files and kind in UNSUPPORTED:
            raise UserError(f"{name!r} has {files[0].name}, which means {UNSUPPORTED[kind]}: choose a checkpoint without it")
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise UserError(f"{name!r} has {len(files)} files of its {kind}: leave one of {names}", key="policy.model")
        if files:
            found[kind] = files[0]
    return Components(head=found.get(HEAD), state=found.get(STATE))


def check_components(name: str, found: Components, *, head: bool, state: int, dims: int, saved: bool = False) -> None:
    """Raise UserError if the files lack what a policy needs, or are for other widths. A checkpoint without any of them and
    without a file of statistics is taken for a model before fine-tuning, whose head and projector are made anew.

    head: whether the policy has a regression head. state: numbers of the state that it reads. dims: numbers of an action. saved:
    whether it is a folder that mmrl saved, which must have them."""
    tuned = saved or bool(found) or (Path(name) / STATISTICS).is_file()
    for kind, needed, file in ((HEAD, head, found.head), (STATE, bool(state), found.state)):
        if needed and file is None and tuned:
            option = 'head = "l1"' if kind == HEAD else f"state = {state}"
            raise UserError(
                f"{name!r} has no {kind}--*_checkpoint.pt, and policy.options.{option} needs one: copy it from where the "
                f"checkpoint comes from, or leave {option.split()[0]} out",
                key="policy.model",
            )
    for option, wanted, there, used in (
        ("state", state, found.state_numbers, found.state),
        ("dims", dims if head else 0, found.action_numbers, found.head),
    ):
        if wanted and used is not None and there != wanted:
            raise UserError(
                f"policy.options.{option} = {wanted}, and {used.name} of the checkpoint is for {there} numbers: make them equal"
            )


def read(file: Path) -> dict[str, torch.Tensor]:
    """Name -> weight; the prefix that distributed training put before each name is removed. Nothing but tensors is unpickled."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise UserError(f"{file} can't be read as weights: {shorten(error, 200)}", key="policy.model") from error
    if not isinstance(found, Mapping) or not all(isinstance(w, torch.Tensor) for w in found.values()):
        raise UserError(f"{file} holds something else than weights by name: {CURE}", key="policy.model")
    return {name.removeprefix("module."): weight for name, weight in found.items()}


def fill(file: Path, module: nn.Module, prefix: str = "") -> None:
    """Copy the weights of a file into those of a module. prefix: of the file's names. Raises UserError if they don't fit."""
    weights, own = read(file), {prefix + name: p for name, p in module.named_parameters()}
    if odd := sorted(weights.keys() ^ own.keys()):
        where = "lacks" if odd[0] in own else "has"
        raise UserError(f"{file} {where} {odd[0]}, unlike what OpenVLA-OFT saves: {CURE}", key="policy.model")
    with torch.no_grad():
        for name, parameter in own.items():
            if weights[name].shape != parameter.shape:
                there, here = list(weights[name].shape), list(parameter.shape)
                raise UserError(f"{file}: {name} is {there}, and {here} beside this model: {CURE}", key="policy.model")
            parameter.copy_(weights[name])


def write(folder: Path, kind: str, module: nn.Module, prefix: str = "") -> None:
    """Write a component file that `fill` and OpenVLA-OFT read."""
    weights = {prefix + name: p.detach().cpu().clone() for name, p in module.named_parameters()}
    torch.save(weights, folder / f"{kind}--latest_checkpoint.pt")


def write_statistics(folder: Path, key: str, action: Mapping[str, Any], state: Mapping[str, Any] | None) -> None:
    """Write statistics where OpenVLA-OFT looks for them. key: name of the data set. action, state: such as q01, q99 and mask."""
    table = {"action": action} if state is None else {"action": action, "proprio": state}
    (folder / STATISTICS).write_text(json.dumps({key: table}, indent=2), encoding="utf-8")


def _shape(file: Path, name: str) -> torch.Size:
    weights = read(file)
    if name not in weights or weights[name].dim() != 2:
        raise UserError(f"{file} lacks {name}, which OpenVLA-OFT saves: {CURE}", key="policy.model")
    return weights[name].shape

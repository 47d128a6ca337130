"""Files of tensors with a digest, so that one that was cut short or changed is refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from mmrl.api.errors import UserError


def write(path: Path, tensors: Mapping[str, torch.Tensor], marks: Mapping[str, str]) -> None:
    """Write tensors, and what they say of themselves, atomically."""
    aside = path.with_name(f".{path.name}.tmp")
    save_file(dict(tensors), aside, {**marks, "digest": _digest(tensors, marks)})
    with open(aside, "rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)


def read(path: Path, what: str, example: str) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """(marks, tensors) that `write` wrote. what: kind of the file; example: its usual name. Raises UserError if there is none, or
    if it isn't what was written."""
    if not path.is_file():
        raise UserError(f"there is no {what} {path}, such as {example}: name one that is there, or restore it")
    torn = f"{what} {path} {{}}: it is torn; restore it, or begin anew"
    try:
        with safe_open(path, "pt") as file:
            marks = file.metadata() or {}
        tensors = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(torn.format(f"can't be read: {error}")) from error
    digest = marks.pop("digest", "")
    if digest != _digest(tensors, marks):
        raise UserError(torn.format("isn't what was saved"))
    return marks, tensors


def _digest(tensors: Mapping[str, torch.Tensor], marks: Mapping[str, str]) -> str:
    found = hashlib.sha256(json.dumps(marks, sort_keys=True).encode())
    for name in sorted(tensors):
        found.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}".encode())
        found.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)  # NumPy has no bfloat16
    return found.hexdigest()

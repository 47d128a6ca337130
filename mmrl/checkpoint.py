"""Checkpoints: everything that a resume needs, in safetensors and JSON. A checkpoint appears whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmrl.errors import UserError
from mmrl.learn import Learner
from mmrl.policies.vlm import VLM

POLICY, REFERENCE, OPTIMIZER, STATE = "policy", "reference", "optimizer.safetensors", "state.json"


def save(path: Path, policy: VLM, learner: Learner, state: Mapping[str, Any]) -> None:
    """Write a checkpoint folder: the policy as transformers loads it, the optimiser, and `state` as JSON.

    Everything is written and flushed beside its place and then renamed, so a kill at any moment leaves the last one whole.
    Raises UserError when the disk is full or not writable; earlier checkpoints are untouched.
    """
    from safetensors.torch import save_file

    aside = path.with_name(f".{path.name}.tmp")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        policy.save(aside / POLICY)
        if learner.reference is not None:
            learner.reference.save(aside / REFERENCE)
        save_file(learner.state(), aside / OPTIMIZER)
        (aside / STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")
        _flush(aside)
        if path.exists():  # a run that was stopped right after writing it
            shutil.rmtree(path)
        os.rename(aside, path)
        _flush_folder(path.parent)
    except Exception as error:
        shutil.rmtree(aside, ignore_errors=True)
        if not _is_disk_fault(error):
            raise
        cure = "free some space" if _is_full(error) else "mend that"
        raise UserError(f"checkpoint {path} could not be written: {error}: {cure}, then go on with --resume; earlier checkpoints are intact") from error


def load(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(state, optimiser tensors) of a checkpoint; the policy is loaded from `path / POLICY`."""
    from safetensors.torch import load_file

    try:
        return json.loads((path / STATE).read_text(encoding="utf-8")), load_file(path / OPTIMIZER)
    except (OSError, ValueError) as error:
        raise UserError(f"checkpoint {path} can't be read: {error}: remove that folder to go on from an earlier one") from error


def restore(path: Path, tensors: Mapping[str, torch.Tensor], learner: Learner) -> None:
    """Give a stage's learner its optimiser state and its KL reference back; its policy is loaded already."""
    from safetensors.torch import load_file

    learner.load_state(dict(tensors))
    if learner.reference is not None:
        weights = load_file(path / REFERENCE / "model.safetensors")
        learner.reference.model.load_state_dict(weights, strict=False)


def clean(folder: Path) -> None:
    """Remove what a killed save left behind."""
    for aside in folder.glob(".step-*.tmp"):
        shutil.rmtree(aside)


def prune(paths: list[Path], keep: int, best: Path | None) -> None:
    """Remove all but the newest `keep` checkpoints and the best one."""
    for path in paths[:-keep]:
        if path != best:
            shutil.rmtree(path)


def _is_full(error: Exception) -> bool:
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "os error 28" in str(error).lower() or "no space" in str(error).lower()


def _is_disk_fault(error: Exception) -> bool:
    return isinstance(error, OSError) or _is_full(error)  # safetensors wraps what its writer saw


def _flush(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    for path in [p for p in folder.rglob("*") if p.is_dir()] + [folder]:
        _flush_folder(path)


def _flush_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

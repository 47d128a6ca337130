"""Checkpoints: everything that a resume needs, in safetensors and JSON. A checkpoint appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.policies.policy import Policy
from mmrl.policies.shard import gather_to_first, unsharded
from mmrl.policies.shard_files import Shards, write_shards
from mmrl.train.update.learner import Learner

POLICY, LEARNER, SHARDS, STATE = "policy", "learner.safetensors", "learner", "state.json"


def save(path: Path, policy: Policy, learner: Learner, state: Mapping[str, Any], shards: bool = False) -> None:
    """Write a checkpoint folder: the policy as transformers loads it (its mean weights, where a stage keeps them), what else the
    learner needs (optimiser, KL reference, critic), and `read_state` as JSON. shards: every rank writes its own part of that,
    where weights are spread over ranks; any number of ranks can go on from it.

    Everything is written and flushed beside its place and then renamed, so a kill at any moment leaves the last one whole.
    Raises UserError when the disk is full or not writable; earlier checkpoints are untouched.
    """
    aside = path.with_name(f".{path.name}.tmp")
    if ranks.broadcast_from_first(path.exists):  # the same step, so the same weights: only the state has moved on
        ranks.broadcast_from_first(lambda: _guarded(path, aside, lambda: _write_state(path, state)))
        return
    ranks.broadcast_from_first(lambda: _guarded(path, aside, lambda: _cleared(aside)))
    _save_learner(path, aside, learner, shards and policy.root is not None)  # first: some tensors are the weights themselves
    with learner.optimizer.averaged(), unsharded(policy.root):
        ranks.broadcast_from_first(lambda: _guarded(path, aside, lambda: _write(path, aside, policy, state)))


def _save_learner(path: Path, aside: Path, learner: Learner, shards: bool) -> None:
    tensors = learner.state()
    if shards:
        ranks.run_on_all(lambda: _guarded(path, aside, lambda: write_shards(tensors, aside / SHARDS)))
        return
    found = gather_to_first(tensors)
    ranks.broadcast_from_first(lambda: _guarded(path, aside, lambda: save_file(found, aside / LEARNER)))


def _cleared(aside: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)


def _write(path: Path, aside: Path, policy: Policy, state: Mapping[str, Any]) -> None:
    policy.save(aside / POLICY)
    _write_state(aside, state)
    _flush(aside)
    os.rename(aside, path)
    _flush_folder(path.parent)


def _guarded(path: Path, aside: Path, work: Callable[[], None]) -> None:
    """What the system refuses becomes one line."""
    try:
        work()
    except Exception as error:
        shutil.rmtree(aside, ignore_errors=True)
        number = _errno(error)
        if number is None:
            raise
        cure = "free some space" if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "mend that"
        raise UserError(
            f"checkpoint {path} could not be written: {os.strerror(number)}: {cure}, then go on with --resume; "
            "earlier checkpoints are intact"
        ) from error


def _write_state(folder: Path, state: Mapping[str, Any]) -> None:
    aside = folder / f".{STATE}.tmp"
    aside.write_text(json.dumps(state, indent=2), encoding="utf-8")
    os.replace(aside, folder / STATE)


@contextlib.contextmanager
def checkpoint_errors(path: Path) -> Iterator[None]:
    """Whatever a damaged checkpoint raises becomes one line that names it."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"checkpoint {path} can't be read: {error}: remove that folder to go on from an earlier one") from error


def load(path: Path) -> tuple[dict[str, Any], Mapping[str, torch.Tensor]]:
    """(state, the learner's tensors) of a checkpoint; the policy is loaded from `path / POLICY`."""
    with checkpoint_errors(path):
        return read_state(path), Shards(path / SHARDS) if (path / SHARDS).is_dir() else load_file(path / LEARNER)


def read_state(path: Path) -> dict[str, Any]:
    """Where the run was, without the tensors."""
    with checkpoint_errors(path):
        return dict(json.loads((path / STATE).read_text(encoding="utf-8")))


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed save left behind."""
    for aside in folder.glob(".step-*.tmp/"):
        shutil.rmtree(aside)


def prune(paths: list[Path], keep: int, best: Path | None) -> None:
    """Remove all but the newest `keep` checkpoints and the best one."""
    for path in paths[:-keep]:
        if path != best:
            shutil.rmtree(path)


def _errno(error: Exception) -> int | None:
    """The system's error number; safetensors only writes it into its message."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


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

"""The training function of each `TorchTrainer` worker: adopt the terminal's environment, check the node, and train."""

from __future__ import annotations

import contextlib
import os
import platform
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmrl import __version__
from mmrl.api.errors import UserError
from mmrl.compute import ranks

FREED_S = 180.0
"""Seconds in which a process of the previous attempt must release the run folder."""


def learn(job: Mapping[str, Any]) -> None:
    """Train as one learner, from the first step or the last checkpoint. A UserError is sent to the terminal and not raised, as
    Ray would retry."""
    import ray.train

    from mmrl.compute.progress import NullProgress, RelayedProgress

    rank = ray.train.get_context().get_world_rank()
    teller = RelayedProgress(job["relay"])
    how, why = "finished", ""
    try:
        with as_at_the_terminal(job, teller):
            _learn(job, teller if rank == 0 else NullProgress())
    except ranks.RankLost:
        raise
    except KeyboardInterrupt:
        how = "stopped"
    except UserError as error:
        teller.tell("ended", "refused", str(error))
        return
    except SystemExit:  # the first rank reports this rank's error
        return
    except Exception:
        teller.tell("broke", f"learner {rank}:\n{traceback.format_exc()}")
        raise
    if rank == 0:
        teller.tell("ended", how, why)


def _learn(job: Mapping[str, Any], progress: Any) -> None:
    import ray

    from mmrl.config.load import parse_config
    from mmrl.train.start import train

    config = parse_config(job["config"])
    path = Path(config.runs_dir) / config.name
    ranks.run_and_gather(lambda: check_node(job))
    attempt, mark = ranks.broadcast_from_first(lambda: ray.get(job["relay"].begin.remote(mark_of(path))))
    if attempt:
        progress.note(f"a process died: the run goes on from its last checkpoint (retry {attempt} of {job['retries']})")
        ranks.broadcast_from_first(lambda: wait_until_free(path))
    replaced = ranks.broadcast_from_first(lambda: mark_of(path) != mark)
    going_on = job["resume"] or (attempt > 0 and (replaced or not job["overwrite"]))
    folder = train(config, progress, resume=going_on, overwrite=job["overwrite"] and not going_on, begun=progress.begun)
    if ranks.is_first():
        job["report"](folder.path)


@contextlib.contextmanager
def as_at_the_terminal(job: Mapping[str, Any], teller: Any) -> Iterator[None]:
    """Use the environment variables of the terminal in which the command was typed, and show warnings there."""
    os.environ.update(job["environment"])

    def show(message: Warning | str, category: type[Warning], filename: str, line: int, *_: Any) -> None:
        teller.tell("note", f"warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def check_node(job: Mapping[str, Any]) -> None:
    """Raise UserError if this node has another version of mmrl, or doesn't see the folder in which the command was given."""
    here, folder = platform.node(), job["folder"]
    if __version__ != job["versions"]["mmrl"]:
        raise UserError(
            f"node {here} has mmrl {__version__}, but the terminal has {job['versions']['mmrl']}: install the same version on all"
        )
    try:
        os.chdir(folder)  # relative paths of a run file start there
    except OSError as error:
        raise UserError(
            f"node {here} has no folder {folder} ({error.strerror}): give the command in a folder that all nodes see"
        ) from None


def mark_of(path: Path) -> str:
    """A text that identifies the run in this folder; empty if there is none."""
    try:
        return (path / "manifest.json").read_text(encoding="utf-8")
    except OSError:
        return ""


def wait_until_free(path: Path) -> None:
    """Wait until a process of the previous attempt, which may survive on a disconnected node, releases the run folder."""
    from mmrl.run_folder.reader import is_run
    from mmrl.train.start import lock_run_folder

    deadline = time.monotonic() + FREED_S
    while is_run(path):
        try:
            with lock_run_folder(path):
                return
        except UserError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1.0)

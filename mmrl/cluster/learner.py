"""What each worker of the `TorchTrainer` does: take the terminal's place, look whether the nodes are alike, and train."""

from __future__ import annotations

import contextlib
import os
import platform
import time
import traceback
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmrl import __version__, ranks
from mmrl.errors import UserError

SEEN_S = 20.0
"""Seconds that a file of one node may take to be seen by the others."""
FREED_S = 180.0
"""Seconds that a process of the attempt before may take to let go of the run folder."""


def learn(job: Mapping[str, Any]) -> None:
    """One learner, from its first step or from the last checkpoint. What the run refuses isn't raised, as Ray would try again."""
    import ray.train

    from mmrl.cluster.relay import Quiet, Teller

    first = ray.train.get_context().get_world_rank() == 0
    teller = Teller(job["relay"])
    try:
        with as_at_the_terminal(job, teller):
            _learn(job, first, teller if first else Quiet())
        how, why = "finished", ""
    except KeyboardInterrupt:
        how, why = "stopped", ""
    except UserError as error:
        how, why = "refused", str(error)
    except Exception:
        teller.tell("broke", f"learner {ray.train.get_context().get_world_rank()}:\n{traceback.format_exc()}")
        raise
    if first:
        teller.tell("ended", how, why)


def _learn(job: Mapping[str, Any], first: bool, progress: Any) -> None:
    import ray

    from mmrl.config import parse_config
    from mmrl.start import train
    from mmrl.view.report import write_report

    config = parse_config(job["config"])
    path = Path(config.runs) / config.name
    ranks.together(lambda: check_node(job))
    check_shared(path.parent)
    attempt, mark = ranks.first(lambda: ray.get(job["relay"].begin.remote(mark_of(path))))
    if attempt:
        progress.note(f"a process died: the run goes on from its last checkpoint (retry {attempt} of {job['retries']})")
        ranks.first(lambda: wait_until_free(path))
    replaced = ranks.first(lambda: mark_of(path) != mark)
    going_on = job["resume"] or (attempt > 0 and (replaced or not job["overwrite"]))
    folder = train(config, progress, resume=going_on, overwrite=job["overwrite"] and not going_on, begun=progress.begun)
    if first:
        write_report(folder.path)


@contextlib.contextmanager
def as_at_the_terminal(job: Mapping[str, Any], teller: Any) -> Iterator[None]:
    """The plugins, the folder and the warnings of the one who typed the command."""
    os.environ.update(job["environment"])

    def show(message: Warning | str, category: type[Warning], filename: str, line: int, *_: Any) -> None:
        teller.tell("note", f"warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def check_node(job: Mapping[str, Any]) -> None:
    """UserError when this node has another mmrl, or doesn't see the folder that the command was given in."""
    here, folder = platform.node(), job["folder"]
    if __version__ != job["versions"]["mmrl"]:
        raise UserError(
            f"node {here} has mmrl {__version__}, and the terminal {job['versions']['mmrl']}: install the same on all"
        )
    try:
        os.chdir(folder)  # what a run file names by a path is looked up from there
    except OSError as error:
        raise UserError(
            f"node {here} has no folder {folder} ({error.strerror}): give the command in a folder that all nodes see"
        ) from None


def check_shared(runs: Path) -> None:
    """UserError when a node doesn't see what the first learner writes into the folder of runs."""
    name = ranks.first(lambda: f".seen-{uuid.uuid4().hex}")

    def look() -> None:
        deadline = time.monotonic() + SEEN_S
        while not (runs / name).exists():
            if time.monotonic() > deadline:
                raise UserError(
                    f"node {platform.node()} doesn't see what the first learner writes into {runs.absolute()}: set `runs` to a "
                    "folder that all nodes share"
                )
            time.sleep(0.2)
            with contextlib.suppress(OSError):  # a folder of the network is read anew
                os.listdir(runs)

    try:
        ranks.first(lambda: write(runs, name))
        ranks.together(look)
    finally:
        if ranks.is_first():
            (runs / name).unlink(missing_ok=True)


def write(runs: Path, name: str) -> None:
    try:
        runs.mkdir(parents=True, exist_ok=True)
        (runs / name).touch()
    except OSError as error:
        raise UserError(f"{runs.absolute()} can't be written to ({error.strerror}): give another folder of runs") from None


def mark_of(path: Path) -> str:
    """Tells one run in this folder from another; empty where there is none."""
    try:
        return (path / "manifest.json").read_text(encoding="utf-8")
    except OSError:
        return ""


def wait_until_free(path: Path) -> None:
    """Wait for a process of the attempt before, which may live on where its node was cut off."""
    from mmrl.record import is_run
    from mmrl.start import alone

    deadline = time.monotonic() + FREED_S
    while is_run(path):
        try:
            with alone(path):
                return
        except UserError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1.0)

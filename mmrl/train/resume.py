"""Resume a run from a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.run_folder.reader import read_jsonl, step_of
from mmrl.run_folder.writer import RunFolder
from mmrl.train import checkpoint
from mmrl.train.position import Position
from mmrl.train.run import Run


def newest_checkpoint(folder: RunFolder | None) -> Path | None:
    if folder is None:
        return None
    checkpoint.remove_unfinished(folder.path / "checkpoints")
    found = folder.checkpoints()
    return found[-1] if found else None


def restore(run: Run, path: Path | None) -> None:
    """Restore a run from its newest checkpoint. path: the checkpoint; if None, the run begins again."""
    if path is None:
        run.folder.rewind(-1)
        run.progress.note("no checkpoint to resume from: the run begins at its first step")
        return
    state, tensors = checkpoint.load(path)
    with checkpoint.checkpoint_errors(path):
        try:
            run.at = TypeAdapter(Position).validate_json(json.dumps(state), strict=True)
        except ValidationError as error:
            fault = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, fault['loc']))} of its state: {fault['msg']}") from error
        check_position(run, path)
    ranks.run_on_all(lambda: run.folder.rewind(run.at.step))
    run.watch.replay(read_jsonl(run.folder.path / "metrics.jsonl"), [s.steps for s in run.config.stages])
    run.progress.note(f"resumed after step {run.at.step}")
    run.resume = (path, tensors)


def check_position(run: Run, path: Path) -> None:
    """Raise ValueError if a checkpoint's state doesn't fit this run."""
    at, stages = run.at, run.config.stages
    if at.step != step_of(path) or not 0 <= at.stage < len(stages) or not 0 <= at.stage_step <= stages[at.stage].steps:
        raise ValueError(f"its state says step {at.step}, step {at.stage_step} of stage {at.stage}")


def stage_of(path: Path, stages: int) -> int:
    """The index of a checkpoint's stage. stages: how many the run has."""
    with checkpoint.checkpoint_errors(path):
        number = checkpoint.read_state(path)["stage"]
        if not isinstance(number, int) or not 0 <= number < stages:
            raise ValueError(f"its state says stage {number!r}")
    return number


def newest_state(folder: RunFolder) -> dict[str, Any]:
    """The state of the newest checkpoint; empty if there is none."""
    found = folder.checkpoints()
    return checkpoint.read_state(found[-1]) if found else {}


def find_checkpoint(folder: RunFolder, which: str, state: Mapping[str, Any] | None = None) -> Path | None:
    """The folder of a checkpoint; None if the best weights are those with which the run began. Raises UserError if there is no
    such checkpoint.

    which: `best`, `last` or a step. state: the state of the newest checkpoint, if it is known already.
    """
    found = folder.checkpoints()
    if not found:
        raise UserError(f"{folder.path} has no checkpoint yet: wait for the first one, or set checkpoint.every")
    if which == "last":
        return found[-1]
    if which == "best":
        best = (state or newest_state(folder))["best_step"]
        if best == 0:
            return None
        return folder.checkpoint_dir(best) if best is not None else found[-1]
    if re.fullmatch("[0-9]+", which) and folder.checkpoint_dir(int(which)) in found:
        return folder.checkpoint_dir(int(which))
    raise UserError(
        f"{folder.path} has no checkpoint {which!r}: give best, last or one of {', '.join(str(step_of(p)) for p in found)}"
    )

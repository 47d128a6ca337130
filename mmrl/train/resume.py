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
from mmrl.data.fingerprint import is_changed
from mmrl.run_folder.reader import item_files, read_items, read_jsonl, step_of
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
        run.at = position_of(state, path)
        check_position(run, path)
    ranks.run_on_all(lambda: run.folder.rewind(run.at.step, evaluated=run.at.evaluated_step == run.at.step))
    run.watch.replay(steps_and_figures(run.folder.path / "metrics.jsonl"), [s.steps for s in run.config.stages])
    run.progress.note(f"resumed after step {run.at.step}")
    for label in ranks.broadcast_from_first(lambda: divided_anew(run)):
        run.warn(
            f"evaluation of {label}",
            f"the held-out prompts of {label!r} are others than before, as its data or how they are divided has changed: the run "
            f"may have trained on some of split {run.config.evaluate.split!r}; begin a new run, unless that doesn't matter",
            run.at.step,
        )
    for label, was, now in ranks.broadcast_from_first(lambda: changed_data(run)):
        run.warn(
            f"prompts of {label}",
            f"the training prompts of {label!r} are others than before, {was} then and {now} now, as its data has changed: the "
            "run goes on with those of now; put the former data back and resume again, unless that is meant",
            run.at.step,
        )
    run.resume = (path, tensors)


def divided_anew(run: Run) -> list[str]:
    """The labels of tasks of which the last evaluation of the run asked other prompts than the next one will."""
    files, asked = item_files(run.folder.path), dict[str, set[str]]()
    for row in read_items([*files.values()][-1]) if files else ():
        asked.setdefault(row["task"], set()).add(row["id"])
    return [label for label, ids in asked.items() if run.evaluator.heldout.others(run.setup.entries[label], ids)]


def changed_data(run: Run) -> list[tuple[str, int, int]]:
    """(label, number of prompts when the stage was last begun or resumed, number now) of tasks whose prompts have changed."""
    was = run.at.data if run.at.source else {}  # of a stage that has begun
    both = [(label, was[label], now) for label, now in run.setup.fingerprints(run.at.stage).items() if was.get(label)]
    return [(label, before[0], now[0]) for label, before, now in both if is_changed(before, now)]


def position_of(state: Mapping[str, Any], path: Path) -> Position:
    """The position that a checkpoint's state describes. Raises ValueError if it is of another step, or not whole."""
    try:
        at = TypeAdapter(Position).validate_json(json.dumps(state), strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc']))} of its state: {fault['msg']}") from error
    if at.step != step_of(path):
        raise ValueError(f"its state says step {at.step}")
    if not 0 <= (at.best_step or 0) <= at.step:
        raise ValueError(f"its state says that step {at.best_step} was the best")
    return at


def steps_and_figures(path: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`. Raises UserError for a row that is neither of a step nor of an evaluation."""
    rows = read_jsonl(path)
    for number, row in enumerate(rows, 1):
        extra = row.get("eval", {}).get("extra", {})
        if not isinstance(row.get("step"), int) or not ("metrics" in row or "eval" in row) or not isinstance(extra, dict):
            raise UserError(
                f"{path} line {number} is no row of a step or of an evaluation: the file is damaged; remove that line"
            )
    return rows


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
    if not found:
        return {}
    with checkpoint.checkpoint_errors(found[-1]):
        return vars(position_of(checkpoint.read_state(found[-1]), found[-1]))


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

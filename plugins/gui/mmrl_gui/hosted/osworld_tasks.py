"""OSWorld's task files: `{"id", "instruction", "config": [steps], "evaluator": {...}}`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl_gui.hosted.evaluating import missing


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task that can be played and scored here."""

    instruction: str
    config: Sequence[Mapping[str, Any]]
    evaluator: Mapping[str, Any]


def read_tasks(path: str) -> tuple[dict[str, TaskFile], list[str]]:
    """(name -> task, what is left out and why). A name is the file's, after its folder's. Raises UserError for what is no task,
    and where none is left."""
    root = Path(path).expanduser()
    files = sorted(root.rglob("*.json")) if root.is_dir() else [root]
    if not files:
        raise UserError(f"tasks = {path!r:.100} has no .json file: give OSWorld's evaluation_examples/examples, or a file of it")
    found: dict[str, TaskFile] = {}
    left: list[str] = []
    for file in files:
        name = "/".join(file.with_suffix("").parts[-2:]) if root.is_dir() else file.stem
        task = _read(file)
        if why := missing(task):
            left.append(f"{name} ({why} needs more than the machine's server)")
        else:
            found[name] = TaskFile(task["instruction"], task["config"], task["evaluator"])
    if not found:
        raise UserError(f"none of the {len(left)} tasks in {path!r:.100} can be scored here, such as {left[0]}: give others")
    return found, left


def _read(file: Path) -> dict[str, Any]:
    try:
        task = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file} can't be read ({error.strerror}): give a task file of OSWorld") from error
    except ValueError as error:
        raise UserError(f"{file} is no JSON: give a task file of OSWorld") from error
    fields = {"instruction": str, "evaluator": dict}
    if not isinstance(task, dict) or not all(isinstance(task.get(name), kind) for name, kind in fields.items()):
        raise UserError(f"{file} is no task of OSWorld: it needs {' and '.join(fields)}")
    task["config"] = task.get("config") or []
    if not isinstance(task["config"], list) or not all(isinstance(step, dict) for step in task["config"]):
        raise UserError(f"{file} is no task of OSWorld: its config must be a list of steps")
    return task

"""Episodes of exported rows, for trainers whose workers play environments.

A row stores the place of its prompt. The first episode of a task opens it; all episodes of the process share its judge.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Mapping
from typing import Any

from mmrl import Episode, OpenTask, UserError, open_task

KEYS = {"task": str, "options": dict, "settings": dict, "split": str, "seed": int, "index": int}
"""Key of a stored place -> type of its value."""

_opened: dict[tuple[int, str], OpenTask] = {}
_lock = threading.Lock()


def place(task: str, options: Mapping[str, Any] | None, settings: Mapping[str, Any], split: str, seed: int, index: int) -> str:
    """What a row stores of its prompt, as JSON. options, settings: those of `mmrl.open_task`. Raises UserError for an option
    that JSON can't hold."""
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        return json.dumps(
            {"task": task, "options": dict(options or {}), "settings": given, "split": split, "seed": seed, "index": index}
        )
    except TypeError as error:
        raise UserError(f"task {task!r}: its options can't be written into a row ({error}): give plain values") from None


def begin(stored: object, max_turns: int) -> Episode:
    """A new episode of a row. stored: its `place`. Raises UserError for a text that is none, and EnvironmentFailed if the
    environment doesn't start."""
    where = _read(stored)
    task = _task(where)
    prompts = task.prompts(where["split"], where["seed"])
    if not 0 <= where["index"] < len(prompts):
        raise UserError(f"task {task.id!r} has no prompt {where['index']} of split {where['split']!r}: export its rows again")
    return task.episode(prompts[where["index"]], max_turns)


def close() -> None:
    """Close the tasks of this process; a later episode opens its own again."""
    with _lock:
        own = [_opened.pop(key) for key in [*_opened] if key[0] == os.getpid()]
    for task in own:
        task.close()


atexit.register(close)


def _read(stored: object) -> dict[str, Any]:
    try:
        where = json.loads(stored) if isinstance(stored, str) else None
    except (ValueError, RecursionError):
        where = None
    if not isinstance(where, dict) or any(not isinstance(where.get(key), kind) for key, kind in KEYS.items()):
        raise UserError("a row has no place of an mmrl episode: write it with mmrl export TASK --to")
    return where


def _task(where: Mapping[str, Any]) -> OpenTask:
    key = os.getpid(), json.dumps([where["task"], where["options"], where["settings"]], sort_keys=True)
    with _lock:
        if key not in _opened:
            _opened[key] = open_task(where["task"], where["options"], **where["settings"])
        return _opened[key]

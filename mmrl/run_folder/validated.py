"""Validate the content of a run folder for pages, whichever program wrote it: known fields have their type, or are left out or
turned into text.

`docs/run-folder.md` has the types. Fields that no page uses only have to be valid JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.run_folder.bounded import DEPTH, VALUES, count_values, is_shallow
from mmrl.run_folder.reader import is_row

WHOLE = 1 << 53
"""Bound of integers that all readers, such as JavaScript, represent exactly."""
_ODD = (b"\\ud", b"\\uD", b"NaN", b"Infinity")
"""Bytes in a line that may contain a lone surrogate or a number that isn't finite."""
_LABELS = ("stage", "where", "task", "split", "verifier", "id", "prompt_id", "source", "status", "alarm", "level")
_TEXTS = (*_LABELS, "what", "completion", "instruction")
LABEL = 1000
"""Largest number of characters of a label, such as the name of a task; longer ones are cut off."""
PARTS = 500
"""Largest number of content parts in the messages of a row; further ones are left out."""
_NUMBERS = ("time", "reward", "advantage", "return", "value")
_COUNTS = ("step", "group", "tokens")


def parsed(line: bytes, thorough: bool = False) -> dict[str, Any] | None:
    """A line of a JSONL file as a row; None if it is truncated, is no row, or has more values or levels than a row may have.
    thorough: whether numbers beyond those of JSON are replaced in fields too that `row` doesn't know."""
    if count_values(line) > VALUES:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if line.count(b"[") + line.count(b"{") > DEPTH and not is_shallow(found):
        return None
    return row(to_storable(found) if thorough or any(mark in line for mark in _ODD) else found)


def row(found: Any) -> dict[str, Any] | None:
    """A validated row of any file of a run folder; None if it can't be one."""
    if not is_row(found):
        return None
    timed = "metrics" in found or "eval" in found
    if not _is_count(found.get("step")) and (timed or found.get("step") is not None):
        return None
    for key in _TEXTS:
        if key in found and not isinstance(found[key], str):
            found[key] = _text(found[key])
    for key in _LABELS:
        if len(found.get(key, "")) > LABEL:
            found[key] = found[key][:LABEL]
    for key in _NUMBERS:
        if key in found and not _is_number(found[key]):
            found[key] = 0.0 if key == "time" else None
    for key in _COUNTS:
        if key in found and not _is_count(found[key]):
            found[key] = None
    if timed:
        found.setdefault("stage", "")
    if "metrics" in found and not all(map(_is_number, found["metrics"].values())):
        found["metrics"] = {key: value if _is_number(value) else None for key, value in found["metrics"].items()}
    if "eval" in found:
        found["eval"] = figure(found["eval"])
    if "score" in found:
        found["score"] = _score(found["score"])
    if "messages" in found:
        found["messages"] = _messages(found["messages"])
    return found


def figure(found: Mapping[str, Any]) -> dict[str, Any]:
    """The validated figure of an evaluation."""
    one = dict(found)
    for key in ("task", "split", "metric"):
        one[key] = _text(one.get(key, ""))[:LABEL]
    for key in ("value", "low", "high"):
        one[key] = one.get(key) if _is_number(one.get(key)) else None
    one["n"] = one.get("n") if _is_count(one.get("n")) else None
    one["extra"] = {key: value for key, value in _table(one.get("extra")).items() if _is_number(value)}
    return one


def _score(found: Mapping[str, Any]) -> dict[str, Any]:
    value, parts = found.get("value"), _table(found.get("parts"))
    return {
        **found,
        "value": value if _is_number(value) else None,
        "parts": {key: part if _is_number(part) else None for key, part in parts.items()},
        "status": _text(found.get("status") or ""),
        "detail": _text(found.get("detail") or ""),
    }


def _messages(found: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages of a row up to `PARTS` content parts; a text says how many parts are left out."""
    messages, left = [_message(one) for one in found if isinstance(one, dict)], PARTS
    for n, message in enumerate(messages):
        content = message["content"]
        left -= 1 if isinstance(content, str) else max(1, len(content))
        if left < 0:
            kept = [] if isinstance(content, str) else content[:left]
            lost = len(content) - len(kept) if not isinstance(content, str) else 1
            lost += sum(1 if isinstance(one["content"], str) else len(one["content"]) for one in messages[n + 1 :])
            note = {"type": "text", "text": f"... {lost:,} more parts of the messages are left out"}
            return [*messages[:n], {**message, "content": [*kept, note]}]
    return messages


def _message(found: Mapping[str, Any]) -> dict[str, Any]:
    content = found.get("content")
    if not isinstance(content, str):
        content = [_part(part) for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return {**found, "role": _text(found.get("role") or ""), "content": content}


def _part(found: Mapping[str, Any]) -> dict[str, Any]:
    return {**found, **{key: _text(found[key]) for key in ("type", "path", "text") if key in found}}


# -- whole files ----------------------------------------------------------------------------------------------------------


def config(found: Mapping[str, Any]) -> dict[str, Any]:
    """A validated run file."""
    found = to_storable(found)
    stages = [
        {**stage, "steps": stage["steps"] if _is_count(stage.get("steps")) else None} for stage in _tables(found.get("stages"))
    ]
    for stage in stages:
        stage |= {key: _text(stage[key]) for key in ("kind", "algorithm") if stage.get(key) is not None}
    evaluate = _table(found.get("evaluate"))
    for key in ("num_samples", "temperature"):
        if key in evaluate and (evaluate[key] is None or not _is_number(evaluate[key])):
            del evaluate[key]
    return {**found, "stages": stages, "tasks": _tables(found.get("tasks")), "evaluate": evaluate}


def manifest(found: Mapping[str, Any]) -> dict[str, Any]:
    """A validated manifest."""
    found = to_storable(found)
    machine = _table(found.get("machine"))
    memory, gpus = machine.get("memory_mb"), machine.get("gpus")
    machine |= {"memory_mb": memory if _is_number(memory) else None, "gpus": gpus if isinstance(gpus, list) else []}
    git = _table(found.get("git"))
    git["commit"] = _text(git.get("commit") or "")
    own = {"machine": machine, "git": git, "packages": _table(found.get("packages")), "plugins": _tables(found.get("plugins"))}
    return {**found, **own, **{key: _text(found.get(key) or "") for key in ("mmrl", "started")}}


def summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """A validated summary."""
    found = to_storable(found)
    figures = {
        when: {task: figure(one) for task, one in _table(found.get(when)).items() if isinstance(one, dict)}
        for when in ("before", "best", "last")
    }
    seconds = {key: value for key, value in _table(found.get("seconds")).items() if _is_number(value)}
    return {**found, **figures, "seconds": seconds, "smoke": [one for one in _tables(found.get("smoke")) if _is_proof(one)]}


def _is_proof(found: Mapping[str, Any]) -> bool:
    """Whether it says what a stage of a smoke run showed, see `mmrl.train.smoke_proof`."""
    if not _is_count(found.get("stage")) or not all(isinstance(found.get(key), str) for key in ("kind", "why")):
        return False
    if found.get("step") is None:
        return "step" in found
    numbers, counts = ("moved", "moved_share", "loss"), ("step", "groups", "gold", "drawn")
    known = all(found.get(key) is not None and _is_number(found[key]) for key in numbers)
    return known and all(_is_count(found.get(key)) for key in counts)


def to_storable(value: Any) -> Any:
    """Convert a value to one that JSON, SQLite and UTF-8 can store: numbers that are too large or not finite become None, lone
    surrogates their escape code."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < WHOLE else float(value) if abs(value) < 10**300 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {to_storable(str(key)): to_storable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_storable(one) for one in value]
    return str(value)  # a date of a run file


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < WHOLE


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _tables(value: Any) -> Sequence[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []

"""A run folder that others wrote: each field of each file in turn is something that it shouldn't be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from long_runs import write_episodes, write_items, write_run

ODD: dict[str, Any] = {
    "a text": "12",
    "no text": "",
    "a list": [1, [2], {"type": "image"}],
    "null": None,
    "nan": math.nan,
    "endless": math.inf,
    "too much": "1e999",
    "enormous": 10**400,
    "large": 2**70,
    "negative": -5,
    "a part": 1.5,
    "true": True,
    "a table": {"a": {"b": 1}},
    "half a character": "\ud800x",
    "hostile": "\"><img src=x onerror=alert(1)><script>alert(2)</script>\n\u202e'`",
}
HARM = ("<script>alert", "<img src=x")
"""What is on no page of the run, since text is escaped."""
FILES = (
    "metrics.jsonl", "errors.jsonl", "summary.json", "manifest.json", "rollouts/step-000010.jsonl",
    "evaluations/step-000010.jsonl", "episodes/step-000010/episodes.jsonl",
)  # fmt: skip
CONFIGS = {
    "stages are a text": 'stages = "x"',
    "stages are numbers": "stages = [1, 2]",
    "stages are one": "stages = 5",
    "a stage is none": 'stages = [{kind = "rl"}, [1]]',
    "steps are a text": '[[stages]]\nkind = "rl"\nsteps = "x"',
    "steps are enormous": f'[[stages]]\nkind = "rl"\nsteps = {"9" * 300}',
    "steps are negative": '[[stages]]\nkind = "rl"\nsteps = -5',
    "steps are true": '[[stages]]\nkind = "rl"\nsteps = true',
    "a kind is a list": "[[stages]]\nkind = [1]\nalgorithm = {a = 1}\nsteps = 5",
    "tasks are a number": "tasks = 3",
    "a date": "x = 1979-05-27T07:32:00Z\ny = nan",
    "deep": f"a = {'[' * 5000}{']' * 5000}",
    "no TOML": "= = =",
}


def whole(path: Path) -> Path:
    """A run that has every file there is, with a picture, overlays and an alarm."""
    run = write_run(path, steps=10, every=10, groups=2, size=2)
    write_items(run, 10, 0.5, n=4)
    write_episodes(run, 10)
    rows = [json.loads(line) for line in (run / "rollouts" / "step-000010.jsonl").read_text().splitlines()]
    rows[0]["overlays"] = [{"kind": "box", "source": "said", "coordinates": [0.1, 0.1, 0.5, 0.5], "label": "cup", "image": 0}]
    _write(run / "rollouts" / "step-000010.jsonl", rows)
    what = "91% of the prompts get one answer (limits.answer_collapse.warn = 0.9)"
    _write(
        run / "errors.jsonl",
        [
            {"step": 9, "where": "rl", "what": what, "alarm": "answer_collapse", "level": "warn"},
            {"step": 9, "where": "t p1", "what": "odd"},
        ],
    )
    figure = {"metric": "accuracy", "value": 0.5, "low": 0.4, "high": 0.6, "n": 9, "extra": {"blank": 0.4}}
    closed = {"steps": 10, "best_step": 10, "seconds": {"total": 40.0, "generate": 20.0}, "peak_memory_mb": 300}
    (run / "summary.json").write_text(json.dumps({**{when: {"t": figure} for when in ("before", "best", "last")}, **closed}))
    return run


def damages(run: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """(what is damaged, what does it), of a run that `whole` made; it stays so until the next."""
    for name in FILES:
        file = run / name
        before = file.read_text()
        rows = [json.loads(line) for line in before.splitlines()] if name.endswith("l") else [json.loads(before)]
        for path in sorted({path for row in rows[:12] for path in paths(row)}, key=str):
            for word, value in ODD.items():
                yield f"{name} {'.'.join(map(str, path))}: {word}", _damage(file, before, rows, path, value)
        yield f"{name} restored", lambda file=file, before=before: file.write_text(before) and None
    for word, text in CONFIGS.items():
        yield f"config.toml: {word}", lambda text=text: (run / "config.toml").write_text(text) and None


def _damage(file: Path, before: str, rows: list[Any], path: tuple[Any, ...], value: Any) -> Callable[[], None]:
    def damage() -> None:
        changed = json.loads(json.dumps(rows))
        for row in changed:
            at = row
            for key in path[:-1]:
                at = at.get(key) if isinstance(at, dict) else at[key] if isinstance(at, list) and key < len(at) else None
            if (isinstance(at, dict) and path[-1] in at) or (isinstance(at, list) and path[-1] < len(at)):
                at[path[-1]] = value
        _write(file, changed)

    return damage


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field, and of lists the first entry; of many metrics two."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for n, (key, inner) in enumerate(entries):
        if (at[-1:] == ("metrics",) and key not in ("reward/mean", "time/update")) or (at[-1:] == ("packages",) and n):
            continue
        yield (*at, key)
        yield from paths(inner, (*at, key))


def _write(file: Path, rows: list[Any]) -> None:
    file.write_bytes(as_json(rows, by_line=True))


def as_json(rows: Any, by_line: bool) -> bytes:
    """JSON in which `ODD["too much"]` is a number, which no writer of JSON writes, and readers read. by_line: one row a line."""
    text = "".join(json.dumps(row) + "\n" for row in rows) if by_line else json.dumps(rows)
    return text.replace(f'"{ODD["too much"]}"', ODD["too much"]).encode()

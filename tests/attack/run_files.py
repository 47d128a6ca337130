"""The bundled run files with one thing changed each: read, or refused in one line."""

from __future__ import annotations

import copy
import datetime
import math
import os
import random
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from mmrl.config.load import load_config
from mmrl.testing.attack import Attempt
from mmrl.testing.attack.campaign import attempt

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.toml"))
ODD = [
    *(
        "",
        "x",
        "x" * 100_000,
        "a\0b",
        "../../..",
        True,
        0,
        -1,
        0.5,
        2**70,
        1e300,
        math.nan,
        math.inf,
        [],
        [1, "a"],
        [[]],
        {},
        {"a": {}},
    ),
    *([{}], datetime.date(2026, 1, 1), datetime.time(1, 2)),
]
MOST_S = 5.0


def run_files(every: int = 1) -> Iterator[Attempt]:
    """It held if there is a configuration, or a UserError of one line, within 5 seconds. every: make only one of so many."""
    count = 1500 // every
    rng = random.Random(0)
    sound = [tomllib.loads(path.read_text()) for path in CONFIGS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.toml")
        for number in range(count):
            which = rng.randrange(len(sound))
            name, data = _changed(rng, copy.deepcopy(sound[which]))
            path.write_bytes(tomli_w.dumps(data).encode("utf-8", "surrogatepass"))
            yield attempt(f"{CONFIGS[which].stem} {number}: {name}", MOST_S, load_config, path)
        for number in range(count // 3):
            which = rng.randrange(len(sound))
            path.write_bytes(_damaged(rng, CONFIGS[which].read_bytes()))
            yield attempt(f"{CONFIGS[which].stem} {number}: damaged bytes", MOST_S, load_config, path)
        yield from _no_run_files(Path(folder))


def _changed(rng: random.Random, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """One key of any table removed, renamed, or with another value."""
    place, key = rng.choice(list(_keys(data)))
    how = rng.randrange(4)
    if how == 0:
        del place[key]
        return f"{key} is removed", data
    if how == 1:
        other = rng.choice([str(key) + "x", str(key)[:-1] or "y", str(key).upper(), "", "a b", "ä"])
        place[other] = place.pop(key)
        return f"{key} is called {other!r}", data
    place[key] = rng.choice(ODD)
    return f"{key} is {place[key]!r:.40}", data


def _keys(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for key, value in table.items():
        yield table, key
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _keys(one)


def _damaged(rng: random.Random, content: bytes) -> bytes:
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(content))
        content = content[:at] + bytes([rng.randrange(256)]) * rng.choice((0, 1, 1, 50)) + content[at + rng.choice((0, 1, 30)) :]
    return content


def _no_run_files(folder: Path) -> Iterator[Attempt]:
    """What isn't a file with text of a reasonable size."""
    (folder / "folder.toml").mkdir()
    os.mkfifo(folder / "pipe.toml")
    (folder / "utf16.toml").write_bytes('name = "a"'.encode("utf-16"))
    (folder / "deep.toml").write_text("a = " + "[" * 100_000 + "]" * 100_000)
    (folder / "keys.toml").write_text("".join(f"k{i} = 1\n" for i in range(100_000)))
    with open(folder / "sparse.toml", "wb") as file:
        file.truncate(2**33)
    for path in [*sorted(folder.glob("*.toml")), folder / "none.toml", Path("/dev/zero"), Path("x" * 5000), Path("a\0b")]:
        yield attempt(f"{path.name[:40]!r}", MOST_S, load_config, path)

"""Several tables as one: files joined by ':', and folders of JSON files, with the folder of the pictures of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.errors import display_path, shorten
from mmrl.api.tasks.tables import DataTable, read_json, read_table

EPISODES = "episodes.jsonl"
"""The file of a recording, see the guide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table and where its pictures are."""

    rows: DataTable
    path: str
    """Path of the file."""
    folder: str
    """The folder of relative paths of pictures."""


def tables(path: str, images: str | None) -> list[Table]:
    """The tables of one path, or of several joined by ':'; `images` is then one folder for each, or one for all.

    A folder means its `episodes.jsonl`, or else all JSON and JSONL files in it. Raises UserError if there is none.
    """
    given = [path] if _there(path) else [p for p in path.split(":") if p]
    folders = images.split(":") if images else []
    if not given or len(folders) not in (0, 1, len(given)):
        raise UserError(f"path names {len(given)} tables and images {len(folders)} folders: give one folder for each, or one")
    found: list[Table] = []
    for number, one in enumerate(given):
        own = folders[number if len(folders) > 1 else 0] if folders else None
        for file in _files(one):
            found.append(Table(rows=_rows(file), path=file, folder=own or str(Path(file).expanduser().parent)))
    return found


def parsed(value: Any) -> Any:
    """The value of a table's cell with JSON as text; anything else unchanged. An empty cell is None."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value) if value.lstrip()[:1] in ("{", "[") else value
    except (ValueError, RecursionError):
        raise ValueError(f"{value!r:.60} is no JSON") from None


def first(row: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """The value of the first key with a nonempty value."""
    return next((row[key] for key in keys if row.get(key) not in (None, "")), None)


def picture_key(image: Any) -> str:
    """What tells a picture from others: its path, or the hash of one that is in the table; empty for none or several."""
    return hashlib.sha256(image).hexdigest() if isinstance(image, bytes) else image if isinstance(image, str) else ""


def text_of(row: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """A text under one of some keys; empty without one."""
    found = first(row, keys)
    if found is not None and not isinstance(found, str):
        raise ValueError(f"its {keys[0]} is {found!r:.60} and not a text")
    return " ".join(found.split()) if found else ""


def _files(path: str) -> list[str]:
    local = Path(path).expanduser()
    if not _there(path) or not local.is_dir() or (local / "dataset_dict.json").is_file() or (local / "state.json").is_file():
        return [path]
    if (local / EPISODES).is_file():
        return [str(local / EPISODES)]
    files = sorted(str(p) for p in local.iterdir() if p.suffix.lower() in (".json", ".jsonl") and not p.name.startswith("."))
    if not files:
        raise UserError(f"folder {display_path(path)} has no {EPISODES} and no other JSON file: give the path of a table")
    return files


def _rows(path: str) -> DataTable:
    """A table; a JSON file with one object is a table of one row, or of the steps in it, see `_steps_of`."""
    local = Path(path).expanduser()
    if local.suffix.lower() == ".json" and local.is_file():
        try:
            found = read_json(local)
        except (ValueError, RecursionError, OSError) as error:
            raise UserError(f"{display_path(path)} is no JSON ({shorten(error, 120)}): correct it") from error
        if isinstance(found, dict):
            if steps := _steps_of(found):
                return DataTable(path, len(steps), steps.__getitem__, "step")
            return DataTable(path, 1, lambda _: found, "item")
    return read_table(path)


def _steps_of(found: Mapping[str, Any]) -> list[Any]:
    """The steps of an object with a list of episodes for each category, each a list of steps, as SeeClick's files of AITW are;
    with their category, episode and number in it. Empty for any other object."""
    if not all(isinstance(own, list) and own and all(isinstance(one, list) for one in own) for own in found.values()):
        return []
    return [
        {**step, "category": name, "episode_id": f"{name} {number}", "index": index} if isinstance(step, dict) else step
        for name, own in found.items()
        for number, episode in enumerate(own)
        for index, step in enumerate(episode)
    ]


def _there(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, a NUL, an unknown user's home
        raise UserError(f"path {path!r:.80} can't be looked up: {shorten(error, 60)}: check the path") from None

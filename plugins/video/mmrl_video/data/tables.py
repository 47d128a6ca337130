"""Tables about clips: files joined by ':', each with a folder of clips, in the forms of data sets.

Lists of rows are read as `mmrl.api.tasks.tables` reads them. Two other forms are converted to rows: Charades-STA's text, `ID
start end##sentence` in each line, and ActivityNet Captions' JSON, an object of clips that each have `timestamps` and `sentences`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.errors import display_path, shorten
from mmrl.api.tasks.tables import DataTable, read_table

CLIP_KEYS = ("video", "video_path", "path", "clip", "vid", "video_id", "video_name", "video_basename")
"""Keys of a row's clip; the first nonempty one counts."""
MAX_BYTES = 2**30
"""Maximal size of a text or a JSON object, which are read as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table and where its clips are."""

    rows: DataTable
    path: str
    """Path of the file."""
    folder: str
    """The folder of relative paths of clips."""

    @property
    def name(self) -> str:
        """The file's, without its suffix."""
        return Path(self.path).stem


@dataclass(frozen=True)
class Listed(DataTable):
    """Rows with names."""

    names: tuple[str, ...] = ()

    def location(self, index: int) -> str:
        return f"{display_path(self.name)} {self.names[index]}"


def tables(path: str, videos: str | None) -> list[Table]:
    """The tables of one path, or of several joined by ':'; `videos` is then one folder for each, or one for all.

    Raises UserError if there is none.
    """
    given = [path] if _there(path) else [p for p in path.split(":") if p]
    folders = videos.split(":") if videos else []
    if not given or len(folders) not in (0, 1, len(given)):
        raise UserError(f"path names {len(given)} tables and videos {len(folders)} folders: give one folder for each, or one")
    for folder in folders:
        if not _there(folder):
            raise UserError(f"videos {display_path(folder)} does not exist: give the folder of the clips")
    own = [folders[n if len(folders) > 1 else 0] if folders else None for n in range(len(given))]
    return [
        Table(rows=_rows(file), path=file, folder=folder or str(Path(file).expanduser().parent))
        for file, folder in zip(given, own, strict=True)
    ]


def first(row: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """The value of the first key with a nonempty value."""
    return next((row[key] for key in keys if row.get(key) not in (None, "")), None)


def parsed(value: Any) -> Any:
    """The value of a table's cell with JSON as text; anything else unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"{value!r:.60} is no JSON") from None


def text_of(row: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """A text under one of some keys, with normalised blanks; empty without one."""
    found = first(row, keys)
    if found is not None and not isinstance(found, str):
        raise ValueError(f"its {keys[0]} is {found!r:.60} and not a text")
    return " ".join(found.split()) if found else ""


def _rows(path: str) -> DataTable:
    local = Path(path).expanduser()
    try:
        if local.suffix.lower() == ".txt" and local.is_file():
            return _sentences(path, _read(local))
        if local.suffix.lower() == ".json" and local.is_file() and _is_object(local):
            return _captions(path, json.loads(_read(local)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{display_path(path)} can't be read ({shorten(error, 120)}): correct it") from error
    except OSError as error:
        raise UserError(f"{display_path(path)} can't be read: {error.strerror}: check its permissions") from error
    return read_table(path)


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"{display_path(path)} is too large, {path.stat().st_size:,} bytes: divide it")
    return path.read_text(encoding="utf-8-sig")


def _is_object(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{"


def _sentences(path: str, text: str) -> DataTable:
    """Charades-STA: `AO8RW 0.0 6.9##a person puts a book on a shelf.`"""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]

    def read(index: int) -> dict[str, Any]:
        head, marks, sentence = lines[index][1].partition("##")
        words = head.split()
        if not marks or len(words) != 3:
            raise ValueError(f"{lines[index][1]!r:.60} is not ID START END##SENTENCE")
        return {"video": words[0], "timestamp": words[1:], "sentence": sentence.strip()}

    return Listed(path, len(lines), read, names=tuple(f"line {number}" for number, _ in lines))


def _captions(path: str, found: Mapping[str, Any]) -> DataTable:
    """ActivityNet Captions: `{"v_x": {"duration": 82.7, "timestamps": [[0.8, 19.9], ...], "sentences": ["...", ...]}}`."""
    places = [(clip, k) for clip, about in found.items() for k in range(_count(about))]
    if not places:
        raise UserError(
            f"{display_path(path)} has no clips with `timestamps` and `sentences`, nor is it a list of rows: correct it"
        )

    def read(index: int) -> dict[str, Any]:
        clip, k = places[index]
        about = found[clip]
        times, sentences = (about.get(key) if isinstance(about, Mapping) else None for key in ("timestamps", "sentences"))
        if not isinstance(times, list) or not isinstance(sentences, list):
            raise ValueError(f"{clip!r} has no lists of `timestamps` and `sentences`")
        if len(times) != len(sentences):
            raise ValueError(f"it has {len(times)} timestamps and {len(sentences)} sentences")
        return {"video": clip, "duration": about.get("duration"), "timestamp": times[k], "sentence": sentences[k]}

    return Listed(path, len(places), read, names=tuple(f"{clip!r} sentence {k + 1}" for clip, k in places))


def _count(about: Any) -> int:
    """Number of sentences of a clip; 1 for an unreadable one, which raises when it is used."""
    sentences = about.get("sentences") if isinstance(about, Mapping) else None
    return len(sentences) if isinstance(sentences, list) else 1


def _there(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, a NUL, an unknown user's home
        raise UserError(f"path {path!r:.80} can't be looked up: {shorten(error, 60)}: check the path") from None

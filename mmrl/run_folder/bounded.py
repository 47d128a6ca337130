"""Bounds for what is read of a run folder that others wrote, so that no file of it costs more than some memory and some seconds.

The bounds are far above what runs write. JSON takes up to 25 times its size as Python objects (`[[],[],...]`), and so it is the
number of values that is bounded, besides the bytes.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mmrl.run_folder.files import contents, open_regular_file

LINE = 16 << 20
"""Largest size in bytes of a line of a JSONL file, and of a JSON file."""
VALUES = 250_000
"""Largest number of values in a line, as `count_values` counts them."""
DEPTH = 64
"""Largest depth of lists and tables in each other."""
CONFIG = 1 << 20
"""Largest size in bytes of a run file."""
SCANNED = 1 << 30
"""Bytes of a JSONL file that are looked at in one go."""
LINES = 2_000_000
"""Lines of a JSONL file that are looked at in one go."""
_WORD = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_WORD}(?:[ \t]*\.[ \t]*{_WORD}){{40}}")
"""A TOML key of more than 40 parts: the time to parse it grows with the square of their number."""


@dataclass(slots=True)
class Budget:
    """What may still be read for a page, of all files together."""

    size: int = 256 << 20
    """Bytes."""
    values: int = 2_000_000
    refused: int = 0
    """Number of lines that were not taken."""

    def take(self, line: bytes) -> bool:
        """Whether a line may be parsed. Its bytes are gone either way, since it was read; its values only if it may be."""
        values, fits = count_values(line), len(line) <= self.size
        self.size -= len(line)
        if not fits or values > min(self.values, VALUES):
            self.refused += 1
            return False
        self.values -= values
        return True


def count_values(line: bytes) -> int:
    """A bound of the number of values in JSON text: each follows a comma or an opening bracket."""
    return line.count(b",") + line.count(b"{") + line.count(b"[")


def is_shallow(value: Any, depth: int = DEPTH) -> bool:
    """Whether plain data has at most `depth` levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(is_shallow(one, depth - 1) for one in inner if isinstance(one, dict | list))


def lines(path: Path, at: int = 0) -> Iterator[tuple[int, int, bytes | None]]:
    """Yields (byte offset, length in bytes, line) of each line from byte `at` on; the line is None if it is longer than `LINE`.
    Ends early after `SCANNED` bytes or `LINES` lines. Raises OSError as `open_regular_file` does."""
    with open_regular_file(path) as file:
        file.seek(at)
        end = at + SCANNED
        for _ in range(LINES):
            line: bytes | None = file.readline(LINE + 1)
            if not line or at >= end:
                return
            length = len(line)
            if length > LINE:
                length += 0 if line.endswith(b"\n") else _rest_of_line(file, end - at)
                line = None
            yield at, length, line
            at += length


def _rest_of_line(file: BinaryIO, most: int) -> int:
    """Reads to the end of a line and returns its length. most: bytes after which it gives up."""
    length = 0
    while length < most and (part := file.read(1 << 20)):
        end = part.find(b"\n") + 1
        if end:
            file.seek(end - len(part), os.SEEK_CUR)
            return length + end
        length += len(part)
    return length


def json_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file. Raises OSError or ValueError if there is none, or it is beyond a bound."""
    data = contents(path, LINE)
    try:
        if count_values(data) > VALUES:
            raise ValueError(f"it has more than {VALUES:,} values")
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name}: it contains no JSON object; the file is damaged")
    return _shallow(path, found)


def toml_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file. Raises OSError or ValueError if there is none, or it is beyond a bound."""
    data = contents(path, CONFIG)
    try:
        text = data.decode()
        if _LONG_KEY.search(text):
            raise ValueError("a key has more than 40 parts")
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from error
    return _shallow(path, found)


def _shallow(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    if not is_shallow(found):
        raise ValueError(f"{path.name}: it has more than {DEPTH} levels of tables")
    return found

"""Tables of the user's data, for tasks: JSONL, JSON, CSV, TSV, Parquet, folders of `datasets`, data sets on the Hub.

Accessing a row that can't be used raises a UserError that names its file and line. A run leaves such a row out, counts it and
continues.
"""

from __future__ import annotations

import base64
import codecs
import io
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from mmrl.api.errors import UserError, check_path, display_path, shorten
from mmrl.api.tasks.data_sets import load_data_set, load_parquet
from mmrl.api.tasks.shards import Shards

T = TypeVar("T")
SPLITS = {"train": ("train", "training"), "test": ("testmini", "test", "validation", "valid", "val", "dev")}
"""Split of a task -> its possible names in data sets; the first that exists is used. `testmini` is the part with answers of
MathVista, MathVerse and WeMath."""
SHORTEST = 64
"""A shorter text is no picture in base64."""
MAX_PATH = 4096
"""Largest number of characters of a path, Linux's limit."""
MAX_LINE = 2**26
"""Largest number of bytes of a JSONL line, and of characters of a CSV line."""
MAX_JSON = 2**29
"""Largest number of bytes of a JSON file."""
SCANNED = 100
"""Rows of a data set that are read at once, of which each may hold images."""
_ENCODED = re.compile(r"(?:data:image/[\w.+-]{1,40};base64,)?(?=/9j/|iVBORw0KGgo|R0lGOD|UklGR)")
"""How a picture begins that is written as text, in base64: JPEG, PNG, GIF or WebP."""
_COLUMN = re.compile(r"\{([^{}]+)\}")
"""A column in a text for `fill_columns`."""


@dataclass(frozen=True)
class DataTable(Sequence[dict[str, Any]]):
    """The rows of one table, read on access."""

    name: str
    """The file or data set, for messages."""
    size: int
    """Number of rows."""
    read: Callable[[int], Any]
    """Reads a row by its index, from 0. It must return a mapping; its exceptions become a UserError that names the row."""
    unit: str = "row"
    """What a row is called in messages, such as `line`."""
    first: int = 0
    """Number of the first row in messages."""
    columns: tuple[str, ...] = ()
    """The names of the columns, if the format has any."""
    read_slice: Callable[[range, Sequence[str]], list[Any]] | None = None
    """Reads the values of some columns of neighbouring rows, for a format in which this takes less than reading the rows."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if not -self.size <= index < self.size:
            raise IndexError(index)
        index %= self.size
        try:
            row = self.read(index)
        except UserError:
            raise
        except Exception as error:  # parsers and decoders raise exceptions of many kinds for a broken row
            raise UserError(f"{self.location(index)} can't be read: {shorten(error, 200)}: correct or remove it") from error
        if not isinstance(row, Mapping):
            raise UserError(f"{self.location(index)} holds a {type(row).__name__}, not an object with keys: correct or remove it")
        return dict(row)

    def scan(self, keys: Sequence[str]) -> Iterator[dict[str, Any] | None]:
        """The values under these keys of each row, in order, read in slices; None for a row that can't be read, which raises when
        it is accessed. A row may have other keys too."""
        for start in range(0, self.size, SCANNED):
            part = range(start, min(start + SCANNED, self.size))
            try:
                rows = self.read_slice(part, keys) if self.read_slice else None
            except Exception:  # noqa: BLE001  one of the rows can't be read: they are read one by one
                rows = None
            yield from map(self._readable, part) if rows is None else rows

    def _readable(self, index: int) -> dict[str, Any] | None:
        try:
            return dict(self[index])
        except UserError:
            return None

    def location(self, index: int) -> str:
        """The place of a row for messages, such as `data/train.jsonl line 7`."""
        return f"{display_path(self.name)} {self.unit} {index + self.first}"


@dataclass(frozen=True)
class LazyItems(Sequence[T], Generic[T]):
    """Items that are made from rows on access. An error names the row."""

    rows: DataTable
    make: Callable[[dict[str, Any], int], T]
    """Makes an item from a row and its index. It raises UserError, ValueError, KeyError or TypeError for a row that can't be
    used."""
    chosen: Sequence[int] = field(default=())
    """Indices of the rows to use, in order."""

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: Any) -> Any:
        number = self.chosen[index]
        row = self.rows[number]
        try:
            return self.make(row, number)
        except UserError as error:
            raise UserError(f"{self.rows.location(number)}: {error}") from error
        except KeyError as error:
            raise UserError(
                f"{self.rows.location(number)} has no key {error.args[0]!r}: it has {', '.join(row)[:200]}"
            ) from error
        except (ValueError, TypeError, IndexError, OverflowError) as error:  # OverflowError: an integer too large for a float
            raise UserError(f"{self.rows.location(number)}: {shorten(error, 200)}: correct or remove it") from error


def read_table(path: str, *, name: str | None = None, revision: str | None = None, split: str | None = None) -> DataTable:
    """Open a table: a `.jsonl`, `.json`, `.csv`, `.tsv` or `.parquet` file, a folder that `datasets` saved or reads, or a data
    set's name on the Hub.

    name, revision, split: of a data set. A split may also stand behind the path, as in `owner/name@train`, and no other is then
    read. Rows are parsed on access if the format allows it. Raises UserError if there is no such table or it can't be read.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"path = {path!r:.60} must be a text: the path of a table, or a data set's name")
    if not str(path).strip():  # Python takes no path for the current folder
        raise UserError("path is empty: give the path of a table, or a data set's name")
    local = Path(path).expanduser()
    kinds = {".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _json, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
    wanted = SPLITS.get(split or "train", (str(split),))
    try:
        before, _, own = str(path).rpartition("@")  # as EasyR1 names splits
        named = bool(before and own) and not local.exists()
        if named:
            path, local, wanted = before, Path(before).expanduser(), (own,)
        if local.suffix.lower() in kinds:
            if not local.is_file():
                raise UserError(
                    f"{display_path(path)} {'is no file' if local.exists() else 'does not exist'}: {check_path(path)}"
                )
            if named and own != "train":
                raise UserError(f"{display_path(path)} is one table, without the split {own!r}: leave @{own} out")
            return kinds[local.suffix.lower()](local)
        local.exists()
    except OSError as error:
        why = error.strerror or shorten(error, 200)
        raise UserError(f"{display_path(path)} can't be read: {why}: check the path and its permissions") from error
    found, table = load_data_set(str(path), local, name, revision, wanted)
    if named and found == str(path) and own != "train":
        raise UserError(f"data set {display_path(path)} was saved without splits: leave @{own} out")
    return _samples(found, table) if isinstance(table, Shards) else _table(found, table)


IMAGE_COLUMNS = ("image", "images", "image_path", "image_paths")
"""Columns in which tables have their pictures; the first that a row has is read."""


def resolve_image(path: str, image: Any, folder: str | None = None) -> Any:
    """The image of a row: a path relative to `folder` or, by default, to the table's folder becomes a full path; a picture in
    base64 its bytes; any other value is returned as it is. path: of the table. Raises ValueError for a path that is empty or too
    long, and for broken base64."""
    if not isinstance(image, str):
        return image
    if re.match("https?://", image):
        raise ValueError(f"{image[:40]!r} is a URL: save it as a file first")
    image = image.removeprefix("file://")
    if len(image) > SHORTEST and (start := _ENCODED.match(image)):
        return base64.b64decode("".join(image[start.end() :].split()), validate=True)  # some encoders break lines
    if not image.strip():
        raise ValueError("the image has an empty path")
    if len(image) > MAX_PATH:
        raise ValueError(f"its path has {len(image):,} characters, {image[:40]!r} first: no file has such a name")
    base = Path(folder).expanduser() if folder else Path(str(path)).expanduser().parent
    return str(base / image)


def fill_columns(text: str, row: Mapping[str, Any]) -> str:
    """A text with what a row has in the columns that stand in braces: "{dataset}/{scene}.mp4". Raises KeyError for a column that
    the row doesn't have."""
    return _COLUMN.sub(lambda match: str(row[match[1]]), text)


def columns_in(text: str) -> list[str]:
    """The columns that stand in a text for `fill_columns`."""
    return _COLUMN.findall(text)


# -- formats ----------------------------------------------------------------------------------------------------------------


def _jsonl(path: Path) -> DataTable:
    """The offsets of lines are found now, lines are parsed on access. Blank lines are counted, but are no rows."""
    starts, lines = array("Q"), array("Q")  # 16 bytes a row
    with open(path, "rb") as file:
        at, number, whole = 0, 0, True
        while line := file.readline(MAX_LINE):
            if whole:
                number += 1
                if line.strip():
                    starts.append(at)
                    lines.append(number)
            whole = line.endswith(b"\n")
            at += len(line)

    def read(index: int) -> Any:
        with open(path, "rb") as file:
            file.seek(starts[index])
            line = file.readline(MAX_LINE)
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{display_path(path)} line {lines[index]} is no JSON ({shorten(error, 120)}): correct or remove it"
            ) from error

    return _Lines(str(path), len(starts), read, "line", lines=lines)


@dataclass(frozen=True)
class _Lines(DataTable):
    lines: Sequence[int] = ()
    """The number of each row's line in the file, from 1."""

    def location(self, index: int) -> str:
        return f"{display_path(self.name)} line {self.lines[index]}"


def read_json(path: Path) -> Any:
    """What a JSON file holds. It is read as a whole, so one above `MAX_JSON` is refused. Raises what `json.loads` and reading do.

    COCO's largest annotations, of 118,000 pictures, are 448 MB."""
    if (size := path.stat().st_size) > MAX_JSON:
        raise UserError(f"{display_path(path)} has {size:,} bytes of JSON, which has to be read as a whole: save it as .jsonl")
    return json.loads(path.read_bytes())


def _json(path: Path) -> DataTable:
    try:
        found = read_json(path)
    except (ValueError, RecursionError) as error:
        if _has_lines(error):
            return _jsonl(path)
        raise UserError(f"{display_path(path)} is no JSON ({shorten(error, 120)}): correct it, or save it as .jsonl") from error
    if not isinstance(found, list):
        raise UserError(
            f"{display_path(path)} holds a {type(found).__name__}: give a list of objects, or .jsonl with one object per line"
        )
    return DataTable(str(path), len(found), found.__getitem__, "item")


def _has_lines(error: Exception) -> bool:
    """Whether JSON ended with its first line, an object, and went on with the next: some benchmarks' .json files have lines."""
    return (
        isinstance(error, json.JSONDecodeError)
        and error.msg == "Extra data"
        and (error.lineno, error.colno) == (2, 1)
        and error.doc.startswith("{")
    )


def _csv(path: Path) -> DataTable:
    """The offsets of rows are found now, rows are parsed on access."""
    import csv

    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # a cell may hold a picture in base64
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    starts, lines = array("Q"), array("Q")  # 16 bytes a row
    at = 0

    def counted(file: TextIO) -> Iterator[str]:
        nonlocal at
        while line := file.readline(MAX_LINE):
            if len(line) == MAX_LINE and line[-1] not in "\r\n":
                raise csv.Error(f"a line of more than {MAX_LINE:,} characters")
            at += len(line.encode())
            yield line

    try:
        with open(path, "rb") as raw:
            at = len(codecs.BOM_UTF8) if raw.read(3) == codecs.BOM_UTF8 else 0
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(counted(file), delimiter=delimiter)
            header = next(reader, [])
            start = at
            for row in reader:
                if row:
                    starts.append(start)
                    lines.append(reader.line_num)
                start = at
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{display_path(path)} is no table ({shorten(error, 120)}): save it as UTF-8 CSV with a header"
        ) from error
    if not header or len(set(header)) < len(header):
        raise UserError(f"{display_path(path)}: its first line must name each column once, and holds {header!r:.120}")

    def read(index: int) -> dict[str, str]:
        with open(path, "rb") as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="") as file:
            raw.seek(starts[index])
            row = next(csv.reader(file, delimiter=delimiter))
        if len(row) != len(header):
            raise UserError(
                f"{display_path(path)} line {lines[index]} has {len(row)} fields and the header {len(header)}: "
                "correct or remove it"
            )
        return dict(zip(header, row, strict=True))

    return _Lines(str(path), len(starts), read, "line", columns=tuple(header), lines=lines)


def _samples(name: str, shards: Shards) -> DataTable:
    def read_slice(part: range, keys: Sequence[str]) -> list[dict[str, Any]]:
        return [shards.read(index, keys) for index in part]

    return _Samples(name, len(shards), shards.read, columns=shards.columns, read_slice=read_slice, shards=shards)


@dataclass(frozen=True, kw_only=True)
class _Samples(DataTable):
    shards: Shards

    def location(self, index: int) -> str:
        return self.shards.location(index)


def _parquet(path: Path) -> DataTable:
    return _table(str(path), load_parquet(path))


def _table(name: str, table: Any) -> DataTable:
    """Rows of a `datasets` table with undecoded images, so that `mmrl.api.media.images` decodes them with its limits."""
    columns = tuple(table.column_names)
    table = table.with_format("arrow")  # datasets decodes no images in this format, wherever they are in a row

    def read(index: int) -> dict[str, Any]:
        (row,) = table[index].to_pylist()
        return {column: _image(value) for column, value in row.items()}

    def read_slice(part: range, keys: Sequence[str]) -> list[dict[str, Any]]:
        wanted = [column for column in columns if column in keys]
        if not wanted:
            return [{} for _ in part]
        rows = table[part.start : part.stop].select(wanted).to_pylist()
        return [{column: _image(value) for column, value in row.items()} for row in rows]

    return DataTable(name, len(table), read, columns=columns, read_slice=read_slice)


def _image(value: Any) -> Any:
    """The bytes or path of an undecoded image, also of those in lists and structures; any other value is returned as it is."""
    if isinstance(value, Mapping):
        return value["bytes"] or value["path"] if value.keys() == {"bytes", "path"} else {k: _image(v) for k, v in value.items()}
    if isinstance(value, list) and any(isinstance(v, Mapping | list) for v in value):
        return [_image(v) for v in value]
    return value

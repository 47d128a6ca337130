"""Tables of the user's data, for tasks: JSONL, JSON, CSV, TSV, Parquet, folders of `datasets`, data sets on the Hub.

Accessing a row that can't be used raises a UserError that names its file and line. A run leaves such a row out, counts it and
continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from mmrl.api.errors import UserError, display_path, shorten

T = TypeVar("T")
SPLITS = {"train": ("train", "training"), "test": ("test", "validation", "valid", "val", "dev")}
"""Split of a task -> its possible names in data sets; the first that exists is used."""
MAX_PATH = 4096
"""Largest number of characters of a path, Linux's limit."""
MAX_LINE = 2**26
"""Largest number of bytes of a JSONL line."""
_HUB = re.compile(r"\w[\w.-]{0,95}(/\w[\w.-]{0,95})?")
"""A data set's name on the Hub."""
_FILES = (".txt", ".xlsx", ".arrow", ".zip", ".gz", ".tar", ".mp4", ".png", ".jpg")
"""Suffixes of files; such names are not looked up on the Hub."""


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
            raise UserError(f"{self.location(index)} can't be read: {shorten(error)[:200]}: correct or remove it") from error
        if not isinstance(row, Mapping):
            raise UserError(f"{self.location(index)} holds a {type(row).__name__}, not an object with keys: correct or remove it")
        return dict(row)

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
            raise UserError(f"{self.rows.location(number)}: {shorten(error)[:200]}: correct or remove it") from error


def read_table(path: str, *, name: str | None = None, revision: str | None = None, split: str | None = None) -> DataTable:
    """Open a table: a `.jsonl`, `.json`, `.csv`, `.tsv` or `.parquet` file, a folder saved by `datasets`, or a data set's name on
    the Hub.

    name, revision, split: of a data set. Rows are parsed on access if the format allows it.
    Raises UserError if there is no such table or it can't be read.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"path = {path!r:.60} must be a text: the path of a table, or a data set's name")
    local = Path(path).expanduser()
    kinds = {".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _json, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
    try:
        if local.suffix.lower() in kinds:
            if not local.is_file():
                raise UserError(f"{display_path(path)} {'is no file' if local.exists() else 'does not exist'}: check the path")
            return kinds[local.suffix.lower()](local)
        local.exists()
    except OSError as error:
        why = error.strerror or shorten(error)[:200]
        raise UserError(f"{display_path(path)} can't be read: {why}: check the path and its permissions") from error
    return _dataset(str(path), local, name, revision, split)


def resolve_image(path: str, image: Any, folder: str | None = None) -> Any:
    """The image of a row: a path relative to `folder` or, by default, to the table's folder becomes a full path; any other value
    is returned as it is. path: of the table. Raises ValueError for a path that is empty or too long."""
    if not isinstance(image, str):
        return image
    if not image.strip():
        raise ValueError("the image has an empty path")
    if len(image) > MAX_PATH:
        raise ValueError(f"its path has {len(image):,} characters, {image[:40]!r} first: no file has such a name")
    base = Path(folder).expanduser() if folder else Path(str(path)).expanduser().parent
    return str(base / image)


# -- formats ----------------------------------------------------------------------------------------------------------------


def _jsonl(path: Path) -> DataTable:
    """The offsets of lines are found now, lines are parsed on access. Blank lines are counted, but are no rows."""
    offsets: list[tuple[int, int]] = []
    with open(path, "rb") as file:
        at = 0
        for number, line in enumerate(file, 1):
            if line.strip():
                offsets.append((at, number))
            at += len(line)

    def read(index: int) -> Any:
        at, number = offsets[index]
        with open(path, "rb") as file:
            file.seek(at)
            line = file.readline(MAX_LINE)
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{display_path(path)} line {number} is no JSON ({shorten(error)[:120]}): correct or remove it"
            ) from error

    return _Lines(str(path), len(offsets), read, "line", lines=tuple(number for _, number in offsets))


@dataclass(frozen=True)
class _Lines(DataTable):
    lines: tuple[int, ...] = ()
    """The number of each row's line in the file, from 1."""

    def location(self, index: int) -> str:
        return f"{display_path(self.name)} line {self.lines[index]}"


def _json(path: Path) -> DataTable:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{display_path(path)} is no JSON ({shorten(error)[:120]}): correct it, or save it as .jsonl") from error
    if not isinstance(found, list):
        raise UserError(
            f"{display_path(path)} holds a {type(found).__name__}: give a list of objects, or .jsonl with one object per line"
        )
    return DataTable(str(path), len(found), found.__getitem__, "item")


def _csv(path: Path) -> DataTable:
    import csv

    rows: list[tuple[int, list[str]]] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{display_path(path)} is no table ({shorten(error)[:120]}): save it as UTF-8 CSV with a header"
        ) from error
    if not header or len(set(header)) < len(header):
        raise UserError(f"{display_path(path)}: its first line must name each column once, and holds {header!r:.120}")

    def read(index: int) -> dict[str, str]:
        line, row = rows[index]
        if len(row) != len(header):
            raise UserError(
                f"{display_path(path)} line {line} has {len(row)} fields and the header {len(header)}: correct or remove it"
            )
        return dict(zip(header, row, strict=True))

    return _Lines(str(path), len(rows), read, "line", columns=tuple(header), lines=tuple(line for line, _ in rows))


def _parquet(path: Path) -> DataTable:
    datasets = _datasets()
    try:
        table = datasets.Dataset.from_parquet(str(path))
    except Exception as error:
        raise UserError(f"{display_path(path)} is no Parquet table: {shorten(error)[:200]}: save it again") from error
    return _table(str(path), table)


def _dataset(path: str, local: Path, name: str | None, revision: str | None, split: str | None) -> DataTable:
    datasets = _datasets()
    here = local.exists()
    if local.is_file() or (not here and local.suffix.lower() in _FILES):
        why = "has a format that can't be read: save it as" if here else "does not exist: check the path, to a table as"
        raise UserError(f"{display_path(path)} {why} .jsonl, .json, .csv, .tsv or .parquet")
    if not here and not _HUB.fullmatch(path):
        raise UserError(
            f"{display_path(path)} does not exist, and is no name of a data set on the Hub, such as owner/name: check the path"
        )
    try:
        if (local / "dataset_dict.json").is_file() or (local / "state.json").is_file():
            loaded = datasets.load_from_disk(str(local))
        else:
            loaded = datasets.load_dataset(str(local) if here else path, name, revision=revision)
    except Exception as error:  # downloads, files and schemas fail with exceptions of many kinds
        why = " ".join(str(error).split())[:300]
        if not here:
            raise UserError(
                f"{path} is no file or folder here, and the Hub gives no data set of this name ({why}): check the path"
            ) from error
        raise UserError(f"data set {display_path(path)} can't be loaded: {why}: check path, name and revision") from error
    if not isinstance(loaded, Mapping):
        return _table(path, loaded)
    wanted = next((s for s in SPLITS.get(split or "train", (split,)) if s in loaded), None)
    if wanted is None:
        raise UserError(f"data set {display_path(path)} has no split {split or 'train'!r}: it has {', '.join(map(str, loaded))}")
    return _table(f"{path} {wanted}", loaded[wanted])


def _table(name: str, table: Any) -> DataTable:
    """Rows of a `datasets` table with undecoded images, so that `mmrl.api.media.images` decodes them with its limits."""
    datasets = _datasets()
    for column, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))

    def read(index: int) -> dict[str, Any]:
        return {column: _image(value) for column, value in table[index].items()}

    return DataTable(name, len(table), read, columns=tuple(table.column_names))


def _image(value: Any) -> Any:
    """The bytes or path of an undecoded image; any other value is returned as it is."""
    if isinstance(value, Mapping) and value.keys() == {"bytes", "path"}:
        return value["bytes"] or value["path"]
    if isinstance(value, list) and value and all(isinstance(v, Mapping) and v.keys() == {"bytes", "path"} for v in value):
        return [_image(v) for v in value]
    return value


def _datasets() -> Any:
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError('this table needs datasets: pip install "multimodal-rl[train]"') from None
    datasets.disable_progress_bars()  # they would mix with a run's own lines
    return datasets

"""Read columns of Parquet tables and lines of JSON, with errors in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl import UserError
from mmrl.api.errors import display_path, shorten
from mmrl.api.tasks.tables import read_table

if TYPE_CHECKING:
    import numpy


def read(path: Path, wanted: Sequence[str] | None, episode: int | None = None) -> dict[str, Any]:
    """Name -> column, of a whole table or of an episode's rows alone. wanted: columns to read; None for all."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise UserError('data sets of demonstrations need pyarrow: pip install "multimodal-rl[train]"') from None

    if not path.is_file():
        raise UserError(f"{display_path(path)} does not exist: download the whole data set")
    try:
        there = pyarrow.parquet.read_schema(path).names
        if missing := [name for name in wanted or () if name not in there]:
            raise UserError(f"{display_path(path)} has no column {missing[0]!r}: it has {', '.join(there)[:300]}")
        only = None if episode is None else [("episode_index", "==", episode)]
        table = pyarrow.parquet.read_table(path, columns=None if wanted is None else list(wanted), filters=only)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{display_path(path)} is no Parquet table ({shorten(error, 120)}): download it again") from error
    return {name: table.column(name) for name in table.column_names}


def numbers(column: Any, width: int, where: str) -> numpy.ndarray:
    """float64 [T, width] of a column of numbers or of rows of numbers; Raises UserError for the first invalid frame."""
    import numpy

    rows: list[Any] = column.to_pylist()
    for frame, row in enumerate(rows):
        cells = row if isinstance(row, list) else [row]
        if len(cells) != width:
            raise UserError(f"{where} of frame {frame} has {len(cells)} numbers, and meta/info.json says {width}: correct one")
        if not all(isinstance(cell, int | float) and abs(cell) < 1e30 for cell in cells):  # NaN is not below anything
            raise UserError(
                f"{where} of frame {frame} is {cells!r:.80}: it must be finite numbers; correct or remove the episode"
            )
    return numpy.array(rows, dtype=numpy.float64).reshape(len(rows), width)


def lines(path: Path) -> list[dict[str, Any]]:
    """All objects in a file of JSON lines."""
    if not path.is_file():
        raise UserError(f"{display_path(path)} does not exist: download the whole data set")
    return list(read_table(str(path)))


def size_of(feature: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) of a camera's pictures; None if the data set doesn't say."""
    shape, names = feature.get("shape"), feature.get("names")
    if not isinstance(shape, list) or len(shape) != 3 or not all(isinstance(n, int) for n in shape):
        return None
    if isinstance(names, list) and "height" in names and "width" in names:
        return shape[names.index("height")], shape[names.index("width")]
    return (shape[1], shape[2]) if shape[0] in (1, 3) else (shape[0], shape[1])

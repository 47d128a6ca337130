"""Tables that `datasets` reads: Parquet files, folders, shards of WebDataset, data sets on the Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, check_path, display_path, shorten
from mmrl.api.tasks.shards import Shards, column_name

SLICE = 1000
"""Rows of a Parquet file that are converted at once."""
_HUB = re.compile(r"\w[\w.-]{0,95}(/\w[\w.-]{0,95})?")
"""A data set's name on the Hub."""
_FILES = (".txt", ".xlsx", ".arrow", ".zip", ".gz", ".tar", ".mp4", ".png", ".jpg")
"""Suffixes of files; such names are not looked up on the Hub."""


def load_parquet(path: Path) -> Any:
    """The table of `datasets` that a file is. Raises UserError for a file that is none."""
    datasets = _datasets()
    try:
        return datasets.Dataset.from_parquet(str(path), batch_size=SLICE)
    except Exception as error:
        raise UserError(f"{display_path(path)} is no Parquet table ({shorten(error, 200)}): save it again") from error


def load_data_set(path: str, local: Path, name: str | None, revision: str | None, wanted: Sequence[str]) -> tuple[str, Any]:
    """(the name with that of the split, the table of `datasets`) of a data set. wanted: names of the split, of which the first
    that there is is read. Raises UserError if it can't be."""
    datasets = _datasets()
    here = local.exists()
    shard = local.is_file() and local.suffix.lower() == ".tar"
    if (local.is_file() and not shard) or (not here and local.suffix.lower() in _FILES):
        why = "has a format that can't be read: save it as" if here else f"does not exist: {check_path(path)}; a table is"
        raise UserError(f"{display_path(path)} {why} .jsonl, .json, .csv, .tsv or .parquet")
    if not here and not _HUB.fullmatch(path):
        raise UserError(
            f"{display_path(path)} does not exist, and is no data set on the Hub, such as owner/name: {check_path(path)}"
        )
    try:
        if (local / "dataset_dict.json").is_file() or (local / "state.json").is_file():
            loaded = datasets.load_from_disk(str(local))
        elif shard:
            loaded = {"train": [str(local)]}
        elif local.is_dir() and (found := _folder_of_shards(local, name)):
            loaded = found
        else:
            loaded = datasets.load_dataset(str(local) if here else path, name, revision=revision)
    except Exception as error:  # downloads, files and schemas fail with exceptions of many kinds
        why = shorten(error.__cause__ or error, 300)  # datasets tells the cause of a broken row beneath its own error
        if not here:
            raise UserError(
                f"{path} is no file or folder here, and the Hub gives no data set of this name ({why}): check the path"
            ) from error
        raise UserError(f"data set {display_path(path)} can't be loaded: {why}: check path, name and revision") from error
    if not isinstance(loaded, Mapping):
        return path, loaded
    split = next((s for s in wanted if s in loaded), None)
    if split is None:
        raise UserError(
            f"data set {display_path(path)} has no split {' or '.join(map(repr, wanted))}: it has {', '.join(map(str, loaded))}"
        )
    return f"{path} {split}", Shards(loaded[split]) if isinstance(loaded[split], list) else _samples(loaded[split])


def _folder_of_shards(folder: Path, name: str | None) -> dict[str, list[str]]:
    """The shards of each split, divided by their names as `datasets` does; none where a folder holds something else. Raises what
    `datasets` does."""
    if not any(folder.rglob("*.tar")):
        return {}
    builder = _datasets().load_dataset_builder(str(folder), name)
    if builder.name != "webdataset":
        return {}
    return {str(split): [str(path) for path in paths] for split, paths in builder.config.data_files.items()}


def _samples(table: Any) -> Any:
    """WebDataset's samples as rows: the picture of each is under `image`, and what its JSON holds are columns. Any other table is
    returned as it is."""
    if "__key__" not in table.column_names:
        return table
    table = table.flatten(max_depth=2).remove_columns(["__url__"])
    taken = {*table.column_names}
    for column in table.column_names:
        name = column_name(column)
        if name not in taken:  # of several pictures the first
            table, taken = table.rename_column(column, name), taken | {name}
    return table


def _datasets() -> Any:
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError('this table needs datasets: pip install "multimodal-rl[train]"') from None
    datasets.disable_progress_bars()  # they would mix with a run's own lines, as its errors would, which it raises too
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets

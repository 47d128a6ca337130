"""Where pictures come from: scikit-learn's digits, a local folder, a `datasets` path. Nothing is decoded to list them."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.errors import shorten
from mmrl.api.media.images import load_image
from mmrl.api.tasks.data_sets import SLICE
from mmrl.api.tasks.image_sources import SUFFIXES, files_below, hash_rank, path_id
from mmrl_classification.sampling import Item

SPLITS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}
"""Our split -> its names in sources; the first that exists is used."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """The contents of a source."""

    name: str
    """The source in messages, such as its path."""
    classes: tuple[str, ...]
    """In the source's order; base-to-new divides it in half."""
    items: Mapping[str, Sequence[Item]]
    """Split -> items; under "" when the source is not split."""
    open: Callable[[Item], Any]
    """The item's picture: a path, or a PIL image. Raises UserError if it can't be used."""


def folder(path: str) -> Pictures:
    """One folder per class, or `train/` and `test/` with one folder per class in each; deeper folders belong to their class."""
    root = Path(str(path)).expanduser()
    if not root.is_dir():
        raise UserError(
            f"folder {root.absolute()} {'is a file' if root.exists() else 'does not exist'}: "
            "set path to a folder with one folder of images per class"
        )
    items: dict[str, list[Item]] = {}
    try:
        for split, part in (_own_splits(root) or {"": root}).items():
            classes = _folders(part)
            if not classes:
                raise UserError(
                    f"folder {part} has no class folders: put the images of each class into a folder named after it, "
                    "or set path to where they are"
                )
            items[split] = [item for folder in classes for item in _images(folder, root)]
    except OSError as error:
        raise UserError(f"folder {error.filename} can't be read: {error.strerror}: check its permissions") from None
    labels = sorted({item.label for group in items.values() for item in group})
    return Pictures(str(path), tuple(labels), items, lambda item: item.image)


def _own_splits(root: Path) -> dict[str, Path]:
    """`train` and `test` folders, when both are there."""
    names = {f.name: f for f in _folders(root)}
    found = {ours: names[theirs[0]] for ours, known in SPLITS.items() if (theirs := [n for n in known if n in names])}
    return found if len(found) == len(SPLITS) else {}


def _folders(root: Path) -> list[Path]:
    return sorted((f for f in root.iterdir() if f.is_dir() and not f.name.startswith((".", "__"))), key=lambda f: f.name)


def _images(folder: Path, root: Path) -> list[Item]:
    """The images of a class, by their path below the root, which is their id."""
    found = list(files_below(folder))
    if not found:
        raise UserError(f"class folder {folder} has no images ({', '.join(SUFFIXES)}): add some, or remove the folder")
    label = unicodedata.normalize("NFC", folder.name)  # macOS lists names in another form
    ids = {path_id(file, root): str(file) for file in found}
    return [Item(id, label, ids[id]) for id in sorted(ids)]


def digits(size: int) -> Pictures:
    """The 1,797 digits in scikit-learn, 8 x 8 of 17 greys, enlarged to `size` pixels: warm 100, train 1,300, test 397."""
    from PIL import Image

    items, scans = _digits()

    def draw(item: Item) -> Image.Image:
        grey = (scans[item.image] * 255 / 16).round().astype("uint8")
        return Image.fromarray(grey).resize((size, size), Image.Resampling.BICUBIC).convert("RGB")

    return Pictures("scikit-learn's digits", tuple("0123456789"), items, draw)


@functools.cache
def _digits() -> tuple[dict[str, list[Item]], Any]:
    """(the items of each split, the scans [1797, 8, 8] of 0 to 16)."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise UserError('classification/digits needs scikit-learn: pip install "multimodal-rl[classification]"') from None
    data = load_digits()
    order = sorted(range(len(data.target)), key=lambda i: hash_rank(0, "digits", str(i)))
    cuts = {"warm": order[:100], "train": order[100:1400], "test": order[1400:]}
    return {split: [Item(str(i), str(data.target[i]), i) for i in rows] for split, rows in cuts.items()}, data.images


def dataset(
    path: str, name: str | None, revision: str | None, image_column: str, label_column: str, splits: Mapping[str, str]
) -> Pictures:
    """A `datasets` data set: a Hub name, a folder, a `.parquet` file, or what `save_to_disk` wrote."""
    path = str(path)
    parts = _load(path, name, revision)
    chosen = _chosen(path, list(parts), splits)
    items: dict[str, list[Item]] = {}
    tables: dict[str, Any] = {}
    classes: list[str] = []
    for ours, theirs in chosen.items():
        table = parts[theirs]
        for column in (image_column, label_column):
            if column not in table.column_names:
                raise UserError(
                    f"data set {path} has no column {column!r}: set image_column and label_column; "
                    f"it has {', '.join(table.column_names)}"
                )
        labels, known = _labels(table, label_column, f"{theirs!r} of data set {path}")
        classes += [c for c in known if c not in classes]
        items[ours] = [Item(f"{theirs}/{row}", label, (theirs, row)) for row, label in enumerate(labels)]
        tables[theirs] = _undecoded(table.select_columns(image_column), image_column)

    def decode(item: Item) -> Any:
        split, row = item.image
        value, where = tables[split][row][image_column], f"in row {row} of {split!r} of data set {path}"
        if isinstance(value, Mapping):
            value = value.get("bytes") or value.get("path")
        if value is None:
            raise UserError(f"image {where} is missing: take the row out of the data")
        return load_image(value, name=where)

    return Pictures(f"data set {path}", tuple(classes), items, decode)


def _load(path: str, name: str | None, revision: str | None) -> Mapping[str, Any]:
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError('classification/dataset needs datasets: pip install "multimodal-rl[train]"') from None
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it raises what it would print beside
    local = Path(path).expanduser()
    try:
        if (local / "dataset_dict.json").is_file() or (local / "state.json").is_file():
            loaded = datasets.load_from_disk(str(local))
        elif local.suffix == ".parquet" and local.is_file():
            loaded = datasets.load_dataset("parquet", data_files=str(local), batch_size=SLICE)
        else:
            loaded = datasets.load_dataset(str(local) if local.exists() else path, name, revision=revision)
    except Exception as error:  # a download, a file or a schema: all end in one line
        why = shorten(error, 300)
        raise UserError(f"data set {path} can't be loaded: {why}: check path, name and revision") from error
    return loaded if isinstance(loaded, Mapping) else {"train": loaded}


def _chosen(path: str, there: list[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Our split -> the data set's: as wanted, else its train and test, else its only one, undivided."""
    for split in wanted.values():
        if split not in there:
            raise UserError(f"data set {path} has no split {split!r}: split_names must name one of {', '.join(there)}")
    if wanted:
        return dict(wanted)
    found = {ours: theirs[0] for ours, known in SPLITS.items() if (theirs := [n for n in known if n in there])}
    if len(found) == len(SPLITS):
        return found
    if len(there) == 1:
        return {"": there[0]}
    raise UserError(
        f"data set {path} has the splits {', '.join(there)}: assign them with split_names = {{train = ..., test = ...}}"
    )


def _labels(table: Any, column: str, where: str) -> tuple[list[str], list[str]]:
    """(label of every row, the classes in order)."""
    names = getattr(table.features[column], "names", None)
    values = table[column][:]
    for row, value in enumerate(values):
        if value is None or isinstance(value, list | dict | float) or (names and not 0 <= value < len(names)):
            raise UserError(f"row {row} of {where} has the label {value!r:.40}: label_column must contain class numbers or names")
    labels = [names[v] if names else str(v) for v in values]
    return labels, list(names) if names else sorted(set(labels))


def _undecoded(table: Any, column: str) -> Any:
    """The table with its images as bytes, so that mmrl decodes them, with its limits."""
    import datasets

    if isinstance(table.features[column], datasets.Image):
        return table.cast_column(column, datasets.Image(decode=False))
    return table

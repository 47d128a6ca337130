"""Sources of images for tasks: the photographs of scikit-image and scikit-learn, and the user's own folders. The helpers for
folders work for other files too, such as videos.

Everything is drawn by hashing names with a seed, so every machine draws the same, and a new file doesn't move other files to
another split.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import unicodedata
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mmrl.api.errors import UserError, display_path
from mmrl.api.media import picture_folders
from mmrl.api.tasks.option_checks import check_split

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTOGRAPHS = (
    *("astronaut", "brick", "chelsea", "china", "coffee", "coins", "flower", "grass", "gravel", "hubble_deep_field", "ihc"),
    *("motorcycle_left", "retina", "rocket"),
)
"""Names of the photographs in the wheels of scikit-image and scikit-learn (`china` and `flower`)."""
SUFFIXES = picture_folders.SUFFIXES
SPLIT_SHARES = {"train": 0.7, "test": 0.3}
"""Split -> its part of a photograph's longer side, in this order from the left or top."""


def hash_rank(seed: int, *names: str) -> int:
    """A hash in [0, 2**64) of a seed and names; sorting by it gives a random order."""
    return int.from_bytes(hashlib.sha256("\x1f".join((str(seed), *names)).encode(errors="surrogatepass")).digest()[:8], "big")


def hash_order(numbers: Sequence[int], seed: int, *names: str) -> array[int]:
    """The numbers in a random order, the same on every machine: sorted by the `hash_rank` of seed, names and number."""
    import numpy

    ranks = numpy.fromiter((hash_rank(seed, *names, str(number)) for number in numbers), numpy.uint64, len(numbers))
    ordered = numpy.fromiter(numbers, numpy.uint64, len(numbers))[numpy.argsort(ranks, kind="stable")]
    return array("Q", ordered.tobytes())


def chance(seed: int, *names: str) -> random.Random:
    """A random generator seeded with a seed and names, the same on every machine."""
    return random.Random(hash_rank(seed, *names))


@functools.cache
def photograph(name: str) -> Image:
    """One of `PHOTOGRAPHS`, as an RGB image of at least 256 pixels per side. Don't change it: it is cached.

    Raises UserError if the package with it is not installed.
    """
    from mmrl.api.media.images import load_image

    try:
        if name in ("china", "flower"):
            import sklearn.datasets

            folder = Path(sklearn.datasets.__file__).parent / "images"
        else:
            import skimage

            folder = Path(skimage.__file__).parent / "data"
    except ModuleNotFoundError as error:
        raise UserError(f'photograph {name!r} needs {error.name}: pip install "multimodal-rl[pictures]"') from None
    return load_image(next((p for p in sorted(folder.glob(f"{name}.*")) if p.suffix in SUFFIXES), folder / name))


def random_crop(split: str, draw: random.Random, width: int, height: int, names: tuple[str, ...] = PHOTOGRAPHS) -> Image:
    """A random crop of a random photograph, resized to `width` x `height` pixels. Before resizing, its sides are 0.5 to 1 times
    those of the largest crop of this shape in the split's part. Crops of different splits share no pixel. split: a key of
    `SPLIT_SHARES`."""
    from PIL.Image import Resampling

    whole = photograph(draw.choice(names))
    whole = whole.crop(part(split, whole.size))  # resampling would read pixels outside of the box
    scale = min(whole.width / width, whole.height / height) * draw.uniform(0.5, 1.0)
    x, y = draw.uniform(0, whole.width - scale * width), draw.uniform(0, whole.height - scale * height)
    return whole.resize((width, height), Resampling.BICUBIC, (x, y, x + scale * width, y + scale * height))


def part(split: str, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a split's part in a photograph of `size`, in pixels."""
    check_split(split, SPLIT_SHARES)
    long = max(size)
    names = list(SPLIT_SHARES)
    start = round(long * sum(SPLIT_SHARES[n] for n in names[: names.index(split)]))
    end = start + round(long * SPLIT_SHARES[split])
    end = min(end, long)
    return (start, 0, end, size[1]) if size[0] >= size[1] else (0, start, size[0], end)


def list_files(folder: str, suffixes: Sequence[str] = SUFFIXES, of: str = "image") -> dict[str, Path]:
    """Id -> path of the files in a folder and its subfolders, sorted by id. The id is the path below the folder, the same on
    every machine. No file is opened.

    suffixes: of the files to list, in lower case. of: the kind of file in the singular, for messages.
    Raises UserError if there are none.
    """
    root = Path(str(folder)).expanduser()
    try:
        if not root.is_dir():
            wrong = "is a file" if root.exists() else "does not exist"
            raise UserError(f"folder {display_path(root.absolute())} {wrong}: give a folder of {of}s")
    except OSError as error:
        raise UserError(f"folder {display_path(root)} can't be read: {error.strerror or error}: correct the path") from None
    found = {path_id(path, root): path for path in files_below(root, suffixes)}
    if not found:
        raise UserError(f"folder {display_path(root)} has no {of}s ({', '.join(suffixes)}): add some, or give another folder")
    return dict(sorted(found.items()))


def files_below(root: Path, suffixes: Sequence[str] = SUFFIXES) -> Iterator[Path]:
    """The files in a folder and its subfolders, in no order, without hidden files and what is in hidden folders, such as the
    copies in `.ipynb_checkpoints`. Raises UserError for a folder that can't be read.
    """
    for parent, folders, names in os.walk(root, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent) / name for name in names if not name.startswith(".") and Path(name).suffix.lower() in suffixes)


def path_id(path: Path, root: Path) -> str:
    """A file's path below a folder in one form of Unicode, as macOS lists another."""
    return unicodedata.normalize("NFC", path.relative_to(root).as_posix())


def split_of(id: str, seed: int, shares: Mapping[str, float] = SPLIT_SHARES) -> str:
    """The split of an item, by its id and the seed alone. shares: split -> share; they add up to 1."""
    point = hash_rank(seed, "split", id) / 2**64
    for name, share in shares.items():
        if point < share:
            return name
        point -= share
    return list(shares)[-1]


def split_files(
    folder: str, each: int, seed: int, suffixes: Sequence[str] = SUFFIXES, of: str = "image"
) -> tuple[dict[str, list[str]], dict[str, list[Path]]]:
    """(split -> ids, split -> files): `each` items per file in a folder (see `list_files`); all files come once before any is
    repeated. The split of a file depends on its id and the seed alone.

    Raises UserError if a split of `SPLIT_SHARES` gets no file.
    """
    listed = list_files(folder, suffixes, of)
    order = sorted(listed, key=lambda id: hash_rank(seed, "order", id))
    ids: dict[str, list[str]] = {split: [] for split in SPLIT_SHARES}
    paths: dict[str, list[Path]] = {split: [] for split in SPLIT_SHARES}
    for k in range(each):
        for id in order:
            split = split_of(id, seed)
            paths[split].append(listed[id])
            ids[split].append(f"{id}#{k}" if k else id)
    if empty := [split for split, found in paths.items() if not found]:
        raise UserError(
            f"folder {display_path(folder)} has {len(listed)} {of}{'s' * (len(listed) != 1)}, and none of them is in split "
            f"{empty[0]!r}: add more, or set another seed"
        )
    return ids, paths


def _raise(error: OSError) -> None:
    raise UserError(f"folder {display_path(error.filename)} can't be read: {error.strerror}: check its permissions")


class ImageSource(Protocol):
    """Images by split, made on access."""

    @property
    def ids(self) -> Mapping[str, Sequence[str]]:
        """Split -> ids of the items."""
        ...

    def name(self, split: str, index: int) -> str:
        """Name of the original image: items with different names come from different originals."""
        ...

    def open(self, split: str, index: int) -> Image: ...


@dataclass
class PhotographCrops:
    """Square crops of photographs; crops of different splits share no pixel."""

    size: int
    """Width and height in pixels."""
    counts: Mapping[str, int]
    """Split -> number of crops."""
    seed: int
    names: Sequence[str] = ()
    """Names of `PHOTOGRAPHS` to use; by default all."""

    def __post_init__(self) -> None:
        listed = isinstance(self.names, list | tuple)
        if not listed or any(not isinstance(name, str) or name not in PHOTOGRAPHS for name in self.names):
            raise UserError(f"photographs = {self.names!r:.200} must be a list of names out of {', '.join(PHOTOGRAPHS)}")
        self.ids = {split: [f"{split}-{i:05d}" for i in range(count)] for split, count in self.counts.items()}

    def name(self, split: str, index: int) -> str:
        return self._draw(split, index)[0]

    def open(self, split: str, index: int) -> Image:
        name, draw = self._draw(split, index)
        return random_crop(split, draw, self.size, self.size, (name,))

    def _draw(self, split: str, index: int) -> tuple[str, random.Random]:
        draw = chance(self.seed, "piece", self.ids[split][index])
        return draw.choice(tuple(self.names) or PHOTOGRAPHS), draw


@dataclass
class ImageFolder:
    """The images in a folder; the split of an image depends on its name and the seed alone."""

    path: str
    size: int
    """Larger images are shrunk to this longer side, in pixels; 0 shrinks none."""
    each: int
    """Number of items per image."""
    seed: int

    def __post_init__(self) -> None:
        self.ids, self.files = split_files(self.path, self.each, self.seed)

    def name(self, split: str, index: int) -> str:
        return str(self.files[split][index])

    def open(self, split: str, index: int) -> Image:
        from mmrl.api.media.images import load_image

        picture = load_image(self.files[split][index])
        if self.size and max(picture.size) > self.size:
            scale = self.size / max(picture.size)
            picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
        return picture

"""Pictures that are at hand: the photographs that scikit-image and scikit-learn ship, and folders of one's own. For tasks.
Folders may be of other files, such as clips.

Everything is drawn by hashing names with a seed, so that every machine draws the same, and adding a file moves no other one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mmrl.api.errors import UserError, display_path
from mmrl.api.tasks.option_checks import check_split

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTOGRAPHS = (
    *("astronaut", "brick", "chelsea", "china", "coffee", "coins", "flower", "grass", "gravel", "hubble_deep_field", "ihc"),
    *("motorcycle_left", "retina", "rocket"),
)
"""What scikit-image and scikit-learn have in their wheels; `china` and `flower` are scikit-learn's."""
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"),
    *(".tga", ".jp2", ".avif"),
)
SPLIT_SHARES = {"train": 0.7, "test": 0.3}
"""How much of a photograph's longer side each split is cut from, from its beginning."""


def hash_rank(seed: int, *names: str) -> int:
    """A number in [0, 2**64) for a seed and names: the order in which items are drawn."""
    return int.from_bytes(hashlib.sha256("\x1f".join((str(seed), *names)).encode(errors="surrogatepass")).digest()[:8], "big")


def chance(seed: int, *names: str) -> random.Random:
    """A generator for a seed and names, the same on every machine."""
    return random.Random(hash_rank(seed, *names))


@functools.cache
def photograph(name: str) -> Image:
    """One of `PHOTOGRAPHS`, as an RGB picture of at least 256 pixels a side. Don't change it: it is kept.

    Raises UserError when the package that ships it is not installed.
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
    """A piece of a photograph, `width` x `height` pixels: which, where and how large is drawn, between a quarter of the split's
    part and all of it. Pieces of different splits share no pixel. split: a key of `SPLIT_SHARES`."""
    from PIL.Image import Resampling

    whole = photograph(draw.choice(names))
    whole = whole.crop(part(split, whole.size))  # resampling looks beyond the box that it is given
    scale = min(whole.width / width, whole.height / height) * draw.uniform(0.5, 1.0)
    x, y = draw.uniform(0, whole.width - scale * width), draw.uniform(0, whole.height - scale * height)
    return whole.resize((width, height), Resampling.BICUBIC, (x, y, x + scale * width, y + scale * height))


def part(split: str, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The box of a photograph of `size` that belongs to a split."""
    check_split(split, SPLIT_SHARES)
    long = max(size)
    names = list(SPLIT_SHARES)
    start = round(long * sum(SPLIT_SHARES[n] for n in names[: names.index(split)]))
    end = start + round(long * SPLIT_SHARES[split])
    end = min(end, long)
    return (start, 0, end, size[1]) if size[0] >= size[1] else (0, start, size[0], end)


def list_files(folder: str, suffixes: Sequence[str] = SUFFIXES, of: str = "image") -> dict[str, Path]:
    """The files in a folder and the folders in it, by id: their path below it, the same on every machine. Nothing is opened.

    suffixes: in small letters, of the files that count. of: what they are, in the singular, for messages.
    Raises UserError when there are none.
    """
    root = Path(str(folder)).expanduser()
    try:
        if not root.is_dir():
            wrong = "is a file" if root.exists() else "does not exist"
            raise UserError(f"folder {display_path(root.absolute())} {wrong}: give a folder of {of}s")
    except OSError as error:
        raise UserError(f"folder {display_path(root)} can't be read: {error.strerror or error}: correct path") from None
    found = {
        unicodedata.normalize("NFC", (path := Path(parent) / name).relative_to(root).as_posix()): path  # macOS lists another form
        for parent, _, names in os.walk(root, onerror=_raise)
        for name in names
        if not name.startswith(".") and Path(name).suffix.lower() in suffixes
    }
    if not found:
        raise UserError(f"folder {display_path(root)} has no {of}s ({', '.join(suffixes)}): put some in, or give another")
    return dict(sorted(found.items()))


def split_of(id: str, seed: int, shares: Mapping[str, float] = SPLIT_SHARES) -> str:
    """Which split an item belongs to, by its id alone. shares: add up to 1."""
    point = hash_rank(seed, "split", id) / 2**64
    for name, share in shares.items():
        if point < share:
            return name
        point -= share
    return list(shares)[-1]


def split_files(
    folder: str, each: int, seed: int, suffixes: Sequence[str] = SUFFIXES, of: str = "image"
) -> tuple[dict[str, list[str]], dict[str, list[Path]]]:
    """(split -> ids, split -> files): `each` items of each of a folder's `list_files`, all files once before any comes again.
    Which split one is in depends on its name alone.

    Raises UserError where a split of `SPLIT_SHARES` gets none.
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
            f"folder {display_path(folder)} has {len(listed)} {of}{'s' * (len(listed) != 1)}, and none of them falls to "
            f"{empty[0]!r}: add more, or set another seed"
        )
    return ids, paths


def _raise(error: OSError) -> None:
    raise UserError(f"folder {display_path(error.filename)} can't be read: {error.strerror}: check its permissions")


class ImageSource(Protocol):
    """Pictures by split, made when they are asked for."""

    @property
    def ids(self) -> Mapping[str, Sequence[str]]:
        """Split -> the items' ids."""
        ...

    def name(self, split: str, index: int) -> str:
        """Of the original; pictures of different names are of different ones."""
        ...

    def open(self, split: str, index: int) -> Image: ...


@dataclass
class PhotographCrops:
    """Square pieces of photographs; those of different splits share no pixel."""

    size: int
    """Pixels of a side."""
    counts: Mapping[str, int]
    """Split -> how many."""
    seed: int
    names: Sequence[str] = ()
    """Of `PHOTOGRAPHS`; by default all."""

    def __post_init__(self) -> None:
        listed = isinstance(self.names, list | tuple)
        if not listed or any(not isinstance(name, str) or name not in PHOTOGRAPHS for name in self.names):
            raise UserError(f"photographs = {self.names!r:.200} must be a list of some of {', '.join(PHOTOGRAPHS)}")
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
    """The images in a folder, each whole, some shrunk; which split one is in depends on its name alone."""

    path: str
    size: int
    """Pixels of the longer side that larger ones are shrunk to; 0 shrinks none."""
    each: int
    """Items of each image."""
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

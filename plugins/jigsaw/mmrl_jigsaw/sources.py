"""Where pictures come from: pieces of the photographs at hand, or a folder of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mmrl import UserError, pictures
from mmrl.media import load_image

if TYPE_CHECKING:
    from PIL.Image import Image


class Source(Protocol):
    """Pictures by split, made when they are asked for."""

    @property
    def ids(self) -> Mapping[str, Sequence[str]]:
        """Split -> the items' ids."""

    def open(self, split: str, index: int) -> Image: ...


@dataclass
class Photographs:
    """Square pieces of photographs; those of different splits share no pixel."""

    size: int
    counts: Mapping[str, int]
    seed: int
    names: Sequence[str] = ()
    """Of `mmrl.pictures.PHOTOGRAPHS`; by default all."""

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or any(name not in pictures.PHOTOGRAPHS for name in self.names):
            raise UserError(f"photographs = {self.names!r} must be a list of some of {', '.join(pictures.PHOTOGRAPHS)}")
        self.ids = {split: [f"{split}-{i:05d}" for i in range(count)] for split, count in self.counts.items()}

    def open(self, split: str, index: int) -> Image:
        draw = pictures.chance(self.seed, "piece", self.ids[split][index])
        return pictures.crop(split, draw, self.size, self.size, tuple(self.names) or pictures.PHOTOGRAPHS)


@dataclass
class Folder:
    """The images in a folder, each whole, some shrunk; which split one is in depends on its name alone."""

    path: str
    size: int
    each: int
    seed: int

    def __post_init__(self) -> None:
        self.files: dict[str, list[Path]] = {split: [] for split in pictures.SHARES}
        self.ids: dict[str, list[str]] = {split: [] for split in pictures.SHARES}
        listed = pictures.files(self.path)
        order = sorted(listed, key=lambda id: pictures.rank(self.seed, "order", id))
        for k in range(self.each):
            for id in order:
                split = pictures.split_of(id, self.seed)
                self.files[split].append(listed[id])
                self.ids[split].append(f"{id}#{k}" if k else id)
        if empty := [split for split, found in self.files.items() if not found]:
            raise UserError(
                f"folder {self.path} has {len(listed)} image{'s' * (len(listed) != 1)}, and none of them falls to {empty[0]!r}: "
                "add more, or set another seed"
            )

    def open(self, split: str, index: int) -> Image:
        picture = load_image(self.files[split][index])
        if self.size and max(picture.size) > self.size:
            scale = self.size / max(picture.size)
            picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
        return picture

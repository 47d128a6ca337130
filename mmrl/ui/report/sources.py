"""Where the pictures and videos of a page come from: they are embedded in it, as far as a budget goes, or linked.

Only names that `mmrl.run_folder.writer` makes are followed, so that no row of a run folder leads out of it.
"""

from __future__ import annotations

import base64
import io
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mmrl.api.errors import UserError
from mmrl.api.media.images import load_image
from mmrl.run_folder import webp
from mmrl.run_folder.files import opened

if TYPE_CHECKING:
    from PIL.Image import Image

EXACT = 30_000
"""Bytes up to which a picture is embedded as it is; larger ones become a JPEG."""
SIDES, LARGE = (448, 224), (1600, 1120, 768)
"""Pixels of a JPEG's longer side, the first that there is room for; those of a large picture, such as a whole episode, before."""
MOMENTS, COLUMNS = 4, 2
"""Of the picture that stands for a video at rest: how many, and how many beside each other."""
LARGEST = 20_000_000
"""Pixels of a picture that is linked: `mmrl.run_folder.writer` keeps none that is larger, but others may write there."""
SHOWN = 192
"""Pixels of a video's width on the page, at least."""
_NAME = re.compile(r"(?:media/)?[0-9a-zA-Z_-][0-9a-zA-Z._-]*\.(png|webp)")


@dataclass(frozen=True, slots=True)
class Still:
    """A picture on a page."""

    src: str
    width: int
    """Of the picture that is kept, in pixels; what is embedded may be smaller."""
    height: int


@dataclass(frozen=True, slots=True)
class Film:
    """A video on a page."""

    src: str
    rest: str
    """What stands for it where nothing is to move: a few of its moments."""
    width: int
    height: int
    count: int
    """Of its pictures."""
    frames: str = ""
    """Where each of them can be had: an address that lacks `&n=` and a number; empty where they can't."""
    ms: tuple[int, ...] = ()
    """How long each is shown."""


class Pictures(Protocol):
    """A source of pictures and videos, by their path in a folder of rows. A text in their place says why there is none."""

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        """A picture. among: it is one of so many that share the room there is. large: it is more than others are."""
        ...

    def film(self, path: str) -> Film | str: ...


class Embedded:
    """They are part of the page."""

    def __init__(self, folder: Path, budget: int) -> None:
        """budget: characters of HTML for all of them."""
        self.folder, self.left = folder, budget

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        data = _read(self.folder, path, "png")
        if data is None:
            return "picture is missing"
        size = _size(data)
        if size is None:
            return "not a PNG"
        try:
            for kind, fitting in _smaller(data, (*LARGE, *SIDES) if large else SIDES):
                if len(src := _embedded(kind, fitting)) <= self.left // among:
                    self.left -= len(src)
                    return Still(src, *size)
        except UserError:
            return f"not a picture: {path}"
        return f"left out for size: {path}"

    def film(self, path: str) -> Film | str:
        data = _read(self.folder, path, "webp")
        if data is None:
            return "video is missing"
        if len(src := _embedded("webp", data)) > self.left:
            return f"left out for size: {path}"
        found = _film(data, path, src)
        self.left -= 0 if isinstance(found, str) else len(found.src) + len(found.rest)
        return found


@dataclass(frozen=True, slots=True)
class Linked:
    """Whoever serves the page serves them too."""

    folder: Path
    link: Callable[[str], str]
    """A path in the folder -> its address."""
    frames: Callable[[str], str]
    """The same of a video -> `Film.frames`."""

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        data = _read(self.folder, path, "png", most=24)
        if data is None:
            return "picture is missing"
        size = _size(data)
        if size is not None and size[0] * size[1] > LARGEST:  # a browser would take hundreds of megabytes for it
            return f"too large to be shown: {size[0]:,} by {size[1]:,} pixels"
        return "not a PNG" if size is None else Still(self.link(path), *size)

    def film(self, path: str) -> Film | str:
        data = _read(self.folder, path, "webp")
        if data is None:
            return "video is missing"
        try:
            shown = webp.pictures(data, path)
        except UserError:
            return f"not a video: {path}"
        ms = tuple(ms for _, ms in shown)
        return Film(self.link(path), self.frames(path) + "&n=0", *shown[0][0].size, len(shown), self.frames(path), ms)


def _read(folder: Path, path: str, suffix: str, most: int = -1) -> bytes | None:
    """The first bytes of a file; None where there is none of that name, or where it is none of ours."""
    name = _NAME.fullmatch(path)
    if name is None or name[1] != suffix:
        return None
    try:
        with opened(folder / path) as file:
            return file.read(most)
    except OSError:
        return None


def _size(png: bytes) -> tuple[int, int] | None:
    """(width, height); None of what is no PNG."""
    if png[:8] != b"\x89PNG\r\n\x1a\n" or len(png) < 24:
        return None
    width, height = struct.unpack(">II", png[16:24])
    return (width, height) if width and height else None


def _smaller(png: bytes, sides: tuple[int, ...]) -> Iterator[tuple[str, bytes]]:
    """(kind, data) of a picture, each smaller than the one before."""
    if len(png) <= EXACT:
        yield "png", png
    for side in sides:
        jpeg = _jpeg(png, side)
        yield ("jpeg", jpeg) if len(jpeg) < len(png) else ("png", png)


def _jpeg(png: bytes, side: int) -> bytes:
    small = load_image(png)
    small.thumbnail((side, side))
    small.save(out := io.BytesIO(), "JPEG", quality=82)
    return out.getvalue()


def _embedded(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _film(data: bytes, path: str, src: str) -> Film | str:
    try:
        shown = webp.pictures(data, path)
    except UserError:
        return f"not a video: {path}"
    return Film(src, _embedded("webp", _at_rest(shown)), *shown[0][0].size, len(shown))


def _at_rest(shown: list[tuple[Image, int]]) -> bytes:
    """A few moments in rows, as one small picture."""
    from PIL import Image

    width, height = shown[0][0].size
    scale = min(1.0, SHOWN / 2 / width)
    cell = (max(1, round(width * scale)), max(1, round(height * scale)))
    chosen = sorted({round(i * (len(shown) - 1) / (MOMENTS - 1)) for i in range(MOMENTS)})
    sheet = Image.new("RGBA", (cell[0] * COLUMNS, cell[1] * (1 + (len(chosen) - 1) // COLUMNS)))
    for i, number in enumerate(chosen):
        sheet.paste(shown[number][0].resize(cell), (i % COLUMNS * cell[0], i // COLUMNS * cell[1]))
    sheet.save(out := io.BytesIO(), "WEBP", quality=webp.QUALITY)
    return out.getvalue()

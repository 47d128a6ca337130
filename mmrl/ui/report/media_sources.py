"""Sources of a page's images and videos: `EmbeddedMedia` puts them into the page within a budget, `LinkedMedia` links to them.

Only file names that `mmrl.run_folder.writer` writes are opened, so that a row cannot refer to a file outside its run folder.
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
from mmrl.run_folder.files import open_regular_file

if TYPE_CHECKING:
    from PIL.Image import Image

EXACT = 30_000
"""Maximal bytes of a PNG that is embedded unchanged; larger ones are converted to JPEG."""
SIDES, LARGE = (448, 224), (1600, 1120, 768)
"""Longer sides in pixels of a JPEG, tried in order until it fits; those of LARGE are tried first for a large image, such as a
whole episode."""
MOMENTS, COLUMNS = 4, 2
"""Number of frames and of columns of the sheet that stands for a paused video."""
LARGEST = 20_000_000
"""Maximal pixels of a linked image: `mmrl.run_folder.writer` writes no larger one, but other programs may."""
SHOWN = 192
"""Minimal width in pixels of a video on the page."""
_NAME = re.compile(r"(?:media/)?[0-9a-zA-Z_-][0-9a-zA-Z._-]*\.(png|webp)")


@dataclass(frozen=True, slots=True)
class Still:
    """An image on a page."""

    src: str
    """Its address, or its data as a data URL."""
    width: int
    """Width in pixels of the recorded image; the embedded one may be smaller."""
    height: int
    """Height in pixels of the recorded image."""


@dataclass(frozen=True, slots=True)
class Film:
    """A video on a page."""

    src: str
    """Its address, or its data as a data URL."""
    rest: str
    """Address or data URL of the image that stands for it while it is paused."""
    width: int
    height: int
    count: int
    """Number of frames."""
    frames: str = ""
    """Address of its frames, to which `&n=` and an index are appended; empty if frames cannot be fetched."""
    ms: tuple[int, ...] = ()
    """Duration of each frame in milliseconds."""


class MediaSource(Protocol):
    """A source of images and videos by their path in a folder of rows. Its methods return a reason as text where a file cannot be
    shown."""

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        """An image. among: number of images that share the remaining room. large: whether to prefer a large size."""
        ...

    def film(self, path: str) -> Film | str:
        """A video."""
        ...


class EmbeddedMedia:
    """Embeds images and videos in the page as data URLs."""

    def __init__(self, folder: Path, budget: int) -> None:
        """folder: the folder of the rows. budget: maximal characters of HTML for all media."""
        self.folder, self.left = folder, budget

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        data = _read(self.folder, path, "png")
        if data is None:
            return "image is missing"
        size = _size(data)
        if size is None:
            return "not a PNG"
        try:
            for kind, fitting in _smaller(data, (*LARGE, *SIDES) if large else SIDES):
                if len(src := _embedded(kind, fitting)) <= self.left // among:
                    self.left -= len(src)
                    return Still(src, *size)
        except UserError:
            return f"not an image: {path}"
        return f"left out for size: {path}"

    def film(self, path: str) -> Film | str:
        data = _read(self.folder, path, "webp")
        if data is None:
            return "video is missing"
        if len(src := _embedded("webp", data)) > self.left:
            return f"left out for size: {path}"
        video = _film(data, path, src)
        self.left -= 0 if isinstance(video, str) else len(video.src) + len(video.rest)
        return video


@dataclass(frozen=True, slots=True)
class LinkedMedia:
    """Links to images and videos that the page's server serves."""

    folder: Path
    link: Callable[[str], str]
    """Path of a file in the folder -> its address."""
    frames: Callable[[str], str]
    """Path of a video in the folder -> its `Film.frames`."""

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        data = _read(self.folder, path, "png", most=24)
        if data is None:
            return "image is missing"
        size = _size(data)
        if size is not None and size[0] * size[1] > LARGEST:  # a browser would need hundreds of megabytes
            return f"too large to be shown: {size[0]:,} by {size[1]:,} pixels"
        return "not a PNG" if size is None else Still(self.link(path), *size)

    def film(self, path: str) -> Film | str:
        data = _read(self.folder, path, "webp")
        if data is None:
            return "video is missing"
        try:
            shown = webp.decode_webp(data, path)
        except UserError:
            return f"not a video: {path}"
        ms = tuple(ms for _, ms in shown)
        return Film(self.link(path), self.frames(path) + "&n=0", *shown[0][0].size, len(shown), self.frames(path), ms)


def _read(folder: Path, path: str, suffix: str, most: int = -1) -> bytes | None:
    """The first `most` bytes of a file, all by default; None if it does not exist or its name is not allowed."""
    name = _NAME.fullmatch(path)
    if name is None or name[1] != suffix:
        return None
    try:
        with open_regular_file(folder / path) as file:
            return file.read(most)
    except OSError:
        return None


def _size(png: bytes) -> tuple[int, int] | None:
    """(width, height) from a PNG's header; None if it is not a PNG."""
    if png[:8] != b"\x89PNG\r\n\x1a\n" or len(png) < 24:
        return None
    width, height = struct.unpack(">II", png[16:24])
    return (width, height) if width and height else None


def _smaller(png: bytes, sides: tuple[int, ...]) -> Iterator[tuple[str, bytes]]:
    """Yields (format, data) of ever smaller versions of an image. sides: longer sides in pixels."""
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
        shown = webp.decode_webp(data, path)
    except UserError:
        return f"not a video: {path}"
    return Film(src, _embedded("webp", _at_rest(shown)), *shown[0][0].size, len(shown))


def _at_rest(shown: list[tuple[Image, int]]) -> bytes:
    """A sheet of a few frames in rows, as WebP."""
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

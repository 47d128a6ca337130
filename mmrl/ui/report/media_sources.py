"""Sources of a page's images, videos and sounds: `EmbeddedMedia` puts them into the page within a budget, `LinkedMedia` links to
them.

Only file names that `mmrl.run_folder.writer` writes are opened, so that a row cannot refer to a file outside its run folder.
"""

from __future__ import annotations

import base64
import errno
import functools
import io
import re
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mmrl.api.errors import UserError
from mmrl.api.media.image_limits import MAX_FILE
from mmrl.api.media.images import load_image
from mmrl.api.media.wav import decode_wav
from mmrl.run_folder import webp
from mmrl.run_folder.files import contents, open_regular_file, reason

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
"""Maximal pixels of an image: `mmrl.run_folder.writer` writes no larger one, but other programs may."""
PIXELS = 150_000_000
"""Maximal pixels of images and videos that are decoded for a page or for a section of a report: some seconds of work."""
LEAST = 400
"""Characters of HTML that even a small image needs."""
PEAKS = 192
"""Parts of a sound whose loudness is drawn."""
SOUND_BYTES = 2**20
"""Largest file of a sound: thirty seconds at 16,000 samples of 16 bits."""
SHOWN = 192
"""Minimal width in pixels of a video on the page."""
PIXELATED = 100
"""Images and videos narrower than this are shown pixel by pixel, not smoothed."""
_NAME = re.compile(r"(?:media/)?[0-9a-zA-Z_-][0-9a-zA-Z._-]*\.(png|webp|wav)")


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


@dataclass(frozen=True, slots=True)
class Sound:
    """A sound on a page."""

    src: str
    """Its address, or its data as a data URL; empty if it has no room on the page."""
    peaks: tuple[tuple[float, float], ...]
    """(lowest, highest) sample of each of at most `PEAKS` parts."""
    duration_s: float


@dataclass(slots=True)
class Decoding:
    """What may still be decoded for a page."""

    pixels: int = PIXELS

    def spend(self, pixels: int) -> bool:
        """Whether a medium of so many pixels may be decoded; if so, fewer are left."""
        if pixels > self.pixels:
            return False
        self.pixels -= pixels
        return True


class MediaSource(Protocol):
    """A source of images, videos and sounds by their path in a folder of rows. Its methods return a reason as text where a file
    cannot be shown."""

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        """An image. among: number of images that share the remaining room. large: whether to prefer a large size."""
        ...

    def film(self, path: str) -> Film | str:
        """A video."""
        ...

    def sound(self, path: str) -> Sound | str:
        """A sound."""
        ...


class EmbeddedMedia:
    """Embeds images and videos in the page as data URLs."""

    def __init__(self, folder: Path, budget: int, decoding: Decoding | None = None) -> None:
        """folder: the folder of the rows. budget: maximal characters of HTML for all media. decoding: what may be decoded, also
        of other sources of the page."""
        self.folder, self.left, self.decoding = folder, budget, decoding or Decoding()

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        size = _image_size(self.folder, path)
        if isinstance(size, str):
            return size
        if self.left // among < LEAST:
            return f"left out for size: {path}"
        if not self.decoding.spend(size[0] * size[1]):
            return f"left out for time: {path}"
        try:
            data = contents(self.folder / path, MAX_FILE)
            for kind, fitting in _smaller(data, (*LARGE, *SIDES) if large else SIDES):
                if len(src := _embedded(kind, fitting)) <= self.left // among:
                    self.left -= len(src)
                    return Still(src, *size)
        except (OSError, UserError):
            return f"not an image: {path}"
        return f"left out for size: {path}"

    def film(self, path: str) -> Film | str:
        data = _video(self.folder, path, self.left * 3 // 4)
        if isinstance(data, str):
            return data
        if len(src := _embedded("webp", data)) > self.left:
            return f"left out for size: {path}"
        shown = _decoded(data, path, self.decoding)
        if isinstance(shown, str):
            return shown
        video = Film(src, _embedded("webp", _at_rest(shown)), *shown[0][0].size, len(shown))
        self.left -= len(video.src) + len(video.rest)
        return video

    def sound(self, path: str) -> Sound | str:
        data = _sound(self.folder, path)
        found = data if isinstance(data, str) else _listened(data, path)
        if isinstance(found, str):
            return found
        assert isinstance(data, bytes)
        src = f"data:audio/wav;base64,{base64.b64encode(data).decode()}"
        src = src if len(src) <= self.left // 4 else ""  # or few sounds would take the room of all that follow
        self.left -= len(src)
        return Sound(src, *found)


@dataclass(frozen=True, slots=True)
class LinkedMedia:
    """Links to images and videos that the page's server serves."""

    folder: Path
    link: Callable[[str], str]
    """Path of a file in the folder -> its address."""
    frames: Callable[[str], str]
    """Path of a video in the folder -> its `Film.frames`."""
    decoding: Decoding = field(default_factory=Decoding)
    """What may be decoded, also of other sources of the page."""

    def still(self, path: str, among: int = 1, large: bool = False) -> Still | str:
        size = _image_size(self.folder, path)  # a browser would need hundreds of megabytes for a larger one
        return size if isinstance(size, str) else Still(self.link(path), *size)

    def film(self, path: str) -> Film | str:
        if not _is_name(path, "webp"):
            return "video is missing"
        try:
            about = (self.folder / path).stat(follow_symlinks=False)
        except OSError:
            return "video is missing"
        if self.decoding.pixels <= 0:
            return f"left out for time: {path}"
        found = _played(self.folder, path, (about.st_ino, about.st_size, about.st_mtime_ns))
        if isinstance(found, str):
            return found
        width, height, ms = found
        self.decoding.pixels -= width * height * len(ms)
        return Film(self.link(path), self.frames(path) + "&n=0", width, height, len(ms), self.frames(path), ms)

    def sound(self, path: str) -> Sound | str:
        if not _is_name(path, "wav"):
            return "sound is missing"
        try:
            about = (self.folder / path).stat(follow_symlinks=False)
        except OSError:
            return "sound is missing"
        found = _recorded(self.folder, path, (about.st_ino, about.st_size, about.st_mtime_ns))
        return found if isinstance(found, str) else Sound(self.link(path), *found)


@functools.lru_cache(maxsize=4096)
def _played(folder: Path, path: str, stamp: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]] | str:
    """(width, height, milliseconds of each frame) of a video, or why there is none. stamp: of the file, changes with it."""
    data = _video(folder, path)
    shown = data if isinstance(data, str) else _decoded(data, path)
    return shown if isinstance(shown, str) else (*shown[0][0].size, tuple(ms for _, ms in shown))


@functools.lru_cache(maxsize=4096)
def _recorded(folder: Path, path: str, stamp: tuple[int, ...]) -> tuple[tuple[tuple[float, float], ...], float] | str:
    """(peaks, seconds) of a sound, or why there are none. stamp: of the file, changes with it."""
    data = _sound(folder, path)
    return data if isinstance(data, str) else _listened(data, path)


def _sound(folder: Path, path: str) -> bytes | str:
    """The bytes of a sound, or why it can't be shown."""
    if not _is_name(path, "wav"):
        return "sound is missing"
    try:
        return contents(folder / path, SOUND_BYTES)
    except OSError as error:
        return f"left out for size: {reason(error)}" if error.errno == errno.EFBIG else "sound is missing"


def _listened(data: bytes, path: str) -> tuple[tuple[tuple[float, float], ...], float] | str:
    try:
        found = decode_wav(data, path)
    except UserError:
        return f"not a sound: {path}"
    return tuple(found.peaks(PEAKS)), found.duration_s


def whole_multiple(width: int, most: float) -> int:
    """The largest whole multiple of a width up to `most`, at least the width itself: by another factor, rows and columns of an
    image that is not smoothed would vanish or differ in size."""
    return width * max(1, int(most // width))


def _is_name(path: str, suffix: str) -> bool:
    """Whether a path is that of a file as run folders have them."""
    name = _NAME.fullmatch(path)
    return name is not None and name[1] == suffix


def _image_size(folder: Path, path: str) -> tuple[int, int] | str:
    """(width, height) in pixels of a PNG, from its header; or why it can't be shown."""
    if not _is_name(path, "png"):
        return "image is missing"
    try:
        with open_regular_file(folder / path) as file:
            size = _size(file.read(24))
    except OSError:
        return "image is missing"
    if size is None:
        return "not a PNG"
    return f"too large to be shown: {size[0]:,} by {size[1]:,} pixels" if size[0] * size[1] > LARGEST else size


def _video(folder: Path, path: str, most: int = MAX_FILE) -> bytes | str:
    """The bytes of a video, or why it can't be shown. most: its largest size."""
    if not _is_name(path, "webp"):
        return "video is missing"
    try:
        return contents(folder / path, max(1, most))
    except OSError as error:
        return f"left out for size: {reason(error)}" if error.errno == errno.EFBIG else "video is missing"


_ONE_VIDEO = threading.Lock()
"""Held while a video is decoded, which may take hundreds of megabytes: a server answers many requests at a time."""


def video_frames(data: bytes, name: str) -> list[tuple[Image, int]]:
    """(frame, duration in milliseconds) of a video, one video at a time. Raises UserError as `decode_webp`."""
    with _ONE_VIDEO:
        return webp.decode_webp(data, name)


def _decoded(data: bytes, path: str, decoding: Decoding | None = None) -> list[tuple[Image, int]] | str:
    """(frame, duration in milliseconds) of a video, or why it can't be shown."""
    if decoding and decoding.pixels <= 0:
        return f"left out for time: {path}"
    try:
        shown = video_frames(data, path)
    except UserError:
        return f"not a video: {path}"
    if decoding:
        decoding.pixels -= sum(frame.width * frame.height for frame, _ in shown)
    return shown


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
    image = load_image(png)
    for side in sides:
        jpeg = _jpeg(image, side)
        yield ("jpeg", jpeg) if len(jpeg) < len(png) else ("png", png)


def _jpeg(image: Image, side: int) -> bytes:
    small = image.copy()
    small.thumbnail((side, side))
    small.save(out := io.BytesIO(), "JPEG", quality=82)
    return out.getvalue()


def _embedded(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


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

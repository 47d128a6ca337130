"""What decoding an image may cost, checked on the bytes of its file before Pillow sees them.

A file of kilobytes can hold thousands of scans, or a canvas of gigabytes. Each format has its own way to do so; what can't be
told from the header is stopped by `TimedBytes`.
"""

from __future__ import annotations

import io
import re
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FILE = 48 * 2**20
"""Largest file of an image, in bytes: 48 MiB."""
MAX_PIXELS = 2**26
"""Width times height of the largest image that is decoded, 67 megapixels."""
MAX_BYTES = 480 * 2**20
"""Most memory that decoding an image may take, in bytes, its file included; with what Python itself needs, 512 MB."""
MAX_SECONDS = 2.0
"""Most processor time that reading an image may take."""
MAX_SAMPLES = 2**28
"""Most bytes of a PNG's pixels after decompression, which decide how long it takes."""
MAX_SCANS, MAX_SCANNED = 100, 2**29
"""Most scans of a JPEG, and most scans times pixels. Progressive photographs have about ten scans."""
MAX_SEGMENTS = 10_000
"""Most segments of a JPEG, such as scans, tables and texts."""
MAX_CHUNKS, MAX_NOTES = 2**16, 512
"""Most chunks of a PNG, and most of them that hold no pixels, such as texts."""
MAX_STRIPS = 2**18
"""Most strips or tiles of a TIFF."""

_MAGIC = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "WEBP": rb"RIFF....WEBP",
    "GIF": rb"GIF8[79]a",
    "BMP": rb"BM",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "PPM": rb"P[1-6f]\s",
    "AVIF": rb"....ftyp(?:avif|avis|mif1|msf1)",
}
FORMATS = tuple(_MAGIC)
"""Formats that are opened, by Pillow's names. A JPEG may hold several images (MPO), of which the first is used."""
_DECODER_BYTES = {"WEBP": 12, "AVIF": 20, "PPM": 8, "BMP": 4}
"""Bytes per pixel that a format's decoder needs besides the image, measured."""
_STORED_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes per pixel of an image in memory, where it isn't 4."""
_COMPRESSIONS = ("raw", "packbits", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "group3", "group4", "tiff_ccitt")
"""Compressions of TIFF that are opened. Not JPEG, WebP and others, whose own headers would have to be checked."""


class TimedBytes(io.BytesIO):
    """The bytes of an image's file. Reading raises UserError once the thread has worked `MAX_SECONDS` since they were made: parts
    of Pillow read a file byte by byte, and take minutes for absurd files."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self._name, self._end = name, time.thread_time() + MAX_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        if time.thread_time() > self._end:
            raise UserError(f"image {self._name} takes more than {MAX_SECONDS:g} s to decode: save it again as PNG or JPEG")
        return super().read(size)


def check_file(data: bytes, name: str) -> tuple[str, float]:
    """(format, bytes per pixel that its decoder needs besides the image) of an image's file. The format is empty if it is none of
    `FORMATS`. name: for messages.

    Raises UserError for a file that costs too much to open, or too long to decode.
    """
    kind = next((kind for kind, magic in _MAGIC.items() if re.match(magic, data, re.DOTALL)), "")
    if len(data) > MAX_FILE:
        raise UserError(f"image {name} has more than {MAX_FILE >> 20} MiB: shrink it, or save it as JPEG")
    extra = float(_DECODER_BYTES.get(kind, 0))
    try:
        if kind == "JPEG":
            extra = _check_jpeg(data, name)
        elif kind == "PNG":
            _check_png(data, name)
        elif kind == "WEBP":
            check_memory(*_webp_size(data), extra + 8, len(data), name)  # its decoder takes the memory when it is opened
        elif kind == "TIFF":
            _check_tiff(data, name)
    except struct.error:
        pass  # the file is cut off in its header: Pillow says so
    return kind, extra


def check_image(image: Image, extra: float, size: int, name: str) -> None:
    """Check an opened image before it is decoded. extra: see `check_file`. size: bytes of its file. Raises UserError."""
    width, height = image.size
    if image.format == "TIFF":
        width, height, extra = _tiff_strips(image, name)
    stored = _STORED_BYTES.get(image.mode, 4)
    rgb = 0 if image.mode == "RGB" else 4
    check_memory(width, height, extra + 2 * stored + rgb, size, name)  # twice, because it may have to be turned upright


def check_memory(width: int, height: int, per_pixel: float, size: int, name: str) -> None:
    """Raise UserError if an image of this many pixels is too large, or needs more than `MAX_BYTES`. size: bytes of its file."""
    if width * height > MAX_PIXELS:
        raise UserError(f"image {name} is too large, {width} x {height}: shrink it to at most {MAX_PIXELS:,} pixels")
    if (need := width * height * per_pixel + size) > MAX_BYTES:
        raise UserError(
            f"image {name} is too large, {width} x {height}: decoding it takes {need / 2**20:,.0f} MiB, and at most "
            f"{MAX_BYTES >> 20} are allowed: shrink it"
        )


# -- JPEG -------------------------------------------------------------------------------------------------------------------

_SOS, _EOI = 0xDA, 0xD9
_SOF = (0xC0, 0xC1, 0xC2)
"""Frames of baseline, extended and progressive JPEGs."""
_OTHER_SOF = {*range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""Lossless and arithmetic coding, which nobody uses and which takes ten times as long."""
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
"""A marker with a length, or the end of the image. In coded data 0xff is followed by 0, or by a restart marker."""


def _check_jpeg(data: bytes, name: str) -> float:
    """Bytes per pixel of the coefficients, which are kept if there are several scans."""
    segments = _jpeg_segments(data, name)
    width = height = components = at = 0
    for marker, at in segments:
        if marker in _OTHER_SOF:
            raise UserError(f"image {name} is a lossless or arithmetic-coded JPEG: save it as a usual one, or as PNG")
        if marker in _SOF:
            height, width, components = struct.unpack_from(">HHB", data, at + 3)
        elif marker == _SOS:
            break
    most = min(MAX_SCANS, max(1, MAX_SCANNED // max(1, width * height)))
    scans = 1 + data.count(b"\xff\xda", at)  # or fewer: texts and what follows the image may hold these bytes too
    if scans > most:
        scans = 1 + sum(marker == _SOS for marker, _ in segments)
    if scans > most:
        raise UserError(f"image {name} has {scans:,} scans of {width} x {height} pixels: save it as a usual JPEG, or as PNG")
    return 2.0 * components if scans > 1 else 0.0


def _jpeg_segments(data: bytes, name: str) -> Iterator[tuple[int, int]]:
    """(marker, position of its length) of the segments of a JPEG."""
    at, count = 2, 0
    while found := _MARKER.search(data, at):
        marker, at, count = found[1][0], found.end(), count + 1
        if marker == _EOI:
            return
        if count > MAX_SEGMENTS:
            raise UserError(f"image {name} is a JPEG of more than {MAX_SEGMENTS:,} segments: save it again")
        yield marker, at
        at += max(2, int.from_bytes(data[at : at + 2]))


# -- other formats ----------------------------------------------------------------------------------------------------------

_PNG_BANDS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PNG_PIXELS = (b"IDAT", b"fdAT", b"fcTL")


def _check_png(data: bytes, name: str) -> None:
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    samples = width * height * depth * _PNG_BANDS.get(colour, 4) / 8
    if width * height <= MAX_PIXELS and samples > MAX_SAMPLES:
        raise UserError(
            f"image {name} is too large, {width} x {height} with {depth} bits: its pixels are {samples / 2**20:,.0f} MiB, and at "
            f"most {MAX_SAMPLES >> 20} are allowed: shrink it, or save it with 8 bits"
        )
    at, chunks, notes = 8, 0, 0
    while at + 12 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        at += size + 12
        chunks += 1
        notes += kind not in _PNG_PIXELS
        if chunks > MAX_CHUNKS or notes > MAX_NOTES:
            raise UserError(f"image {name} is a PNG of too many chunks, more than {MAX_NOTES} besides its pixels: save it again")


def _webp_size(data: bytes) -> tuple[int, int]:
    """(width, height) of the canvas."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


_STRIPS = (273, 279, 324, 325)
"""The tags with offsets and sizes of strips and tiles."""


def _check_tiff(data: bytes, name: str) -> None:
    order, big = "<" if data[:2] == b"II" else ">", 43 in data[2:4]
    (at,) = struct.unpack_from(order + ("Q" if big else "L"), data, 8 if big else 4)
    (tags,) = struct.unpack_from(order + ("Q" if big else "H"), data, at)
    head, entry, step = (8, "HHQ", 20) if big else (2, "HHL", 12)
    for number in range(min(tags, len(data) // step)):
        tag, _, count = struct.unpack_from(order + entry, data, at + head + number * step)
        if tag in _STRIPS and count > MAX_STRIPS:
            raise UserError(f"image {name} is a TIFF of {count:,} strips or tiles: at most {MAX_STRIPS:,}: save it again")


def _tiff_strips(image: Image, name: str) -> tuple[int, int, float]:
    """(width, height, bytes per pixel) of an opened TIFF that is decoded at once: its tiles may reach beyond its edges."""
    compression = image.info.get("compression", "raw")
    if compression not in _COMPRESSIONS:
        raise UserError(f"image {name} is a TIFF with compression {compression!r:.40}: save it with Deflate, or as PNG or JPEG")
    tags: Any = getattr(image, "tag_v2", {})
    bits = max(tags.get(258, (1,))) * tags.get(277, 1)
    return _padded(image.width, tags.get(322)), _padded(image.height, tags.get(323)), bits / 8


def _padded(side: int, tile: Any) -> int:
    """A side, rounded up to a multiple of that of the tiles, if there are any."""
    return -(-side // tile) * tile if isinstance(tile, int) and tile > 0 else side

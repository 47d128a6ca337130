"""Safe decoding of images.

Image files are untrusted input: the size is read from the header first, only raster formats that Pillow decodes itself are
opened, and every error becomes one line that names the file.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 2**26
"""Width times height of the largest image that is decoded, 67 megapixels: 268 MB in memory."""
MAX_RATIO = 200
"""Largest ratio of the longer side to the shorter; Qwen's image processors refuse more."""
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "AVIF")
"""Formats that are opened. Not EPS, which runs a program, nor containers that load other files."""


def load_image(ref: Any, max_pixels: int = MAX_PIXELS, name: str = "") -> Image:
    """Load an image as an upright RGB PIL image in its original size.

    ref: a PIL image, a path, or the bytes of an image file. max_pixels: largest width times height. name: for error messages; by
    default its path.

    EXIF orientation is applied; transparency becomes white; CMYK is converted without its colour profile; 16-bit grey is scaled
    to 8 bits; of an animation or a multi-page file the first frame is used. The size is never changed, because coordinates
    depend on it. A tiny image, even of 1 x 1, is returned as it is; the policy's processor enlarges it.

    Raises UserError, which names the image, if it is missing, broken, truncated, larger than `max_pixels`, longer on one side
    than `MAX_RATIO` times the other, or of a format that is not in `FORMATS`.
    """
    from PIL import Image

    name = name or _name(ref)
    if isinstance(ref, Image.Image):
        return _decode(ref, max_pixels, name)
    Image.init()
    try:
        with Image.open(_source(ref, name), formats=[f for f in FORMATS if f in Image.OPEN]) as opened:
            return _decode(opened, max_pixels, name)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"image {name} does not exist: check the path") from None
    except IsADirectoryError:
        raise UserError(f"image {name} is a folder: give the path of one image") from None
    except PermissionError:
        raise UserError(f"image {name} can't be read: check its permissions") from None
    except Image.UnidentifiedImageError:
        raise UserError(
            f"image {name} is broken or of an unknown kind: replace it by a JPEG, PNG, WebP, GIF, BMP or TIFF file"
        ) from None
    except Image.DecompressionBombError:
        raise UserError(f"image {name} is too large: shrink it to at most {max_pixels:,} pixels") from None
    except Exception as error:
        raise _broken(name, error) from error


def _name(ref: Any) -> str:
    if isinstance(ref, str | os.PathLike):
        return os.fspath(ref)
    if isinstance(ref, bytes):
        return f"of {len(ref)} bytes"
    return str(getattr(ref, "filename", "") or f"given as a {type(ref).__name__}")


def _source(ref: Any, name: str) -> Any:
    if isinstance(ref, bytes):
        return io.BytesIO(ref)
    if isinstance(ref, str) and "://" in ref:
        raise UserError(f"image {name} is a URL: download it first, nothing is fetched while training")
    if isinstance(ref, str | os.PathLike):
        path = Path(ref)
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"image {name} is a pipe or a device, not a file: leave it out")
        return path
    raise UserError(f"image {name} is no image: give a PIL image, a path or the bytes of a file")


def _decode(image: Image, max_pixels: int, name: str) -> Image:
    from PIL import ImageOps

    width, height = image.size
    if width * height > max_pixels:
        raise UserError(f"image {name} is too large, {width} x {height}: shrink it to at most {max_pixels:,} pixels")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise UserError(
            f"image {name} is too narrow, {width} x {height}: vision models refuse one side over {MAX_RATIO} times "
            "the other: crop or pad it"
        )
    try:
        image.load()
        upright = ImageOps.exif_transpose(image)
        return upright if upright.mode == "RGB" and "transparency" not in upright.info else _rgb(upright, name)
    except UserError:
        raise
    except Exception as error:  # decoders raise exceptions of many kinds for broken files
        raise _broken(name, error) from error


def _rgb(image: Image, name: str) -> Image:
    from PIL import Image

    if image.mode.startswith("I"):
        return _eight_bits(image, name).convert("RGB")
    if image.mode == "F":
        raise UserError(f"image {name} has floating-point pixels of unknown range: save it with 8 or 16 bits")
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image, name: str) -> Image:
    """Convert 16-bit grey to 8-bit grey; Pillow's own conversion clips everything above 255 to white."""
    import numpy
    from PIL import Image

    grey = numpy.asarray(image).astype(numpy.int64)
    if grey.min() < 0 or grey.max() > 65535:
        raise UserError(f"image {name} has 32-bit pixels of unknown range: save it with 8 or 16 bits")
    return Image.fromarray(((grey * 255 + 32767) // 65535).astype(numpy.uint8))


def _broken(name: str, error: Exception) -> UserError:
    cause = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"image {name} is broken or cut off ({cause}): replace the file, or take it out of the data")

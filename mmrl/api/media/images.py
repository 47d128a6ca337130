"""Safe decoding of images: the one decoder of training, previews, reports and the board.

Image files are untrusted input: what decoding costs is checked on their headers first (`mmrl.api.media.image_limits`), only
raster formats that Pillow decodes itself are opened, and every error becomes one line that names the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError, check_path, display_path
from mmrl.api.media.image_limits import FORMATS, MAX_BYTES, MAX_FILE, MAX_PIXELS, TimedBytes, check_file, check_image

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_RATIO = 200
"""Largest ratio of the longer side to the shorter; Qwen's image processors refuse more."""
FRAME_BYTES = 24
"""Most bytes per pixel that the decoder of an animation holds, besides the frames it has decoded."""
ORIENTED = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")
"""Where Pillow keeps what it knows of an image's orientation, in `info`."""
STRIP = 2**20
"""Pixels that are converted at once, so that a conversion needs little more memory than its result."""


def load_image(ref: Any, max_pixels: int = MAX_PIXELS, name: str = "") -> Image:
    """Load an image as an upright RGB PIL image in its original size.

    ref: a PIL image, a path, or the bytes of an image file. max_pixels: largest width times height. name: for error messages; by
    default its path.

    EXIF orientation is applied; transparency becomes white; CMYK is converted without its colour profile; 16-bit grey is scaled
    to 8 bits; of an animation or a multi-page file the first frame is used. The size is never changed, because coordinates
    depend on it. A tiny image, even of 1 x 1, is returned as it is; the policy's processor enlarges it.

    Raises UserError, which names the image, if it is missing, broken, truncated, larger than `max_pixels`, longer on one side
    than `MAX_RATIO` times the other, of a format that is not in `FORMATS`, or if decoding it would take more memory or time than
    `mmrl.api.media.image_limits` allows.
    """
    from PIL import Image

    name = name or _name(ref)
    if isinstance(ref, Image.Image):
        check_image(ref, 0, 0, name)
        return _decode(ref, max_pixels, name)
    with _opened(ref, name) as image:
        return _decode(image, max_pixels, name)


def load_frames(ref: Any, max_frames: int, name: str = "", formats: Sequence[str] = FORMATS) -> list[tuple[Image, int]]:
    """(frame as RGB image, duration in milliseconds) of each frame of an animation. ref, name: see `load_image`.

    Raises UserError, as `load_image`, also if it has more than `max_frames`, or if all frames together are too large.
    """
    name = name or _name(ref)
    with _opened(ref, name, formats) as image:
        count, (width, height) = getattr(image, "n_frames", 1), image.size
        pixels = width * height * count
        if count > max_frames or pixels > MAX_PIXELS or 4 * pixels + FRAME_BYTES * width * height > MAX_BYTES:
            raise UserError(
                f"image {name} has {count:,} frames of {width} x {height}: at most {max_frames} frames and {MAX_PIXELS:,} "
                "pixels of all together are decoded"
            )
        found = []
        for number in range(count):
            image.seek(number)
            image.load()  # sets the duration
            found.append((image.convert("RGB"), int(image.info.get("duration", 0))))
        return found


@contextmanager
def _opened(ref: Any, name: str, formats: Sequence[str] = FORMATS) -> Iterator[Image]:
    """An image of a file whose cost was checked, not yet decoded. Exceptions inside the block become UserError."""
    from PIL import Image

    try:
        data = _file(ref, name)
        kind, extra = check_file(data, name)
        if kind not in formats:
            raise Image.UnidentifiedImageError
        Image.init()
        with Image.open(TimedBytes(data, name), formats=(kind,)) as image:
            check_image(image, extra, len(data), name)
            yield image
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"image {name} does not exist: {check_path(ref)}") from None
    except IsADirectoryError:
        raise UserError(f"image {name} is a folder: give the path of one image") from None
    except PermissionError:
        raise UserError(f"image {name} can't be read: check its permissions") from None
    except (Image.UnidentifiedImageError, KeyError):  # KeyError: Pillow was built without this format
        raise UserError(
            f"image {name} is broken or of an unknown kind: replace it by a JPEG, PNG, WebP, GIF, BMP or TIFF file"
        ) from None
    except Image.DecompressionBombError:
        raise UserError(f"image {name} is too large: shrink it to at most {MAX_PIXELS:,} pixels") from None
    except Exception as error:  # decoders raise exceptions of many kinds for broken files
        raise _broken(name, error) from error


def _name(ref: Any) -> str:
    if isinstance(ref, str | os.PathLike):
        return display_path(os.fspath(ref))
    if isinstance(ref, bytes):
        return f"of {len(ref)} bytes"
    return str(getattr(ref, "filename", "") or f"given as a {type(ref).__name__}")


def _file(ref: Any, name: str) -> bytes:
    """The bytes of an image's file, of a larger file `MAX_FILE` and one more."""
    if isinstance(ref, bytes):
        return ref
    if isinstance(ref, str) and "://" in ref:
        raise UserError(f"image {name} is a URL: download it first, nothing is fetched while training")
    if not isinstance(ref, str | os.PathLike):
        raise UserError(f"image {name} is no image: give a PIL image, a path or the bytes of a file")
    path = Path(ref)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"image {name} is a pipe or a device, not a file: leave it out")
    with open(path, "rb") as file:
        return file.read(min(os.fstat(file.fileno()).st_size, MAX_FILE) + 1)


def _decode(image: Image, max_pixels: int, name: str) -> Image:
    width, height = image.size
    if not width * height:
        raise UserError(f"image {name} has no pixels, {width} x {height}: leave it out")
    if width * height > max_pixels:
        raise UserError(f"image {name} is too large, {width} x {height}: shrink it to at most {max_pixels:,} pixels")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise UserError(
            f"image {name} is too narrow, {width} x {height}: vision models refuse one side over {MAX_RATIO} times "
            "the other: crop or pad it"
        )
    try:
        image.load()
        upright = _upright(image)
        if upright.mode != "RGB" or "transparency" in upright.info:
            return _rgb(upright, name)
        return upright.copy() if upright is image else upright
    except UserError:
        raise
    except Exception as error:  # decoders raise exceptions of many kinds for broken files
        raise _broken(name, error) from error


def _upright(image: Image) -> Image:
    """The image as its EXIF orientation tells, itself if it is upright. Pillow's `exif_transpose` would read all other tags."""
    from PIL.Image import Transpose

    method = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(image.getexif().get(0x0112, 1))
    if method is None:
        return image
    turned = image.transpose(method)
    for key in ORIENTED:  # Pillow keeps them: a result that a task crops and that is loaded again would be turned again
        turned.info.pop(key, None)
    return turned


def _rgb(image: Image, name: str) -> Image:
    from PIL import Image

    if image.mode.startswith("I"):
        return _by_strips(image, lambda strip: _eight_bits(strip, name).convert("RGB"))
    if image.mode == "F":
        raise UserError(f"image {name} has floating-point pixels of unknown range: save it with 8 or 16 bits")
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:

        def on_white(strip: Image.Image) -> Image.Image:
            rgba = strip.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")

        return _by_strips(image, on_white)
    return image.convert("RGB")


def _by_strips(image: Image, convert: Callable[[Image], Image]) -> Image:
    """An image, converted to RGB some rows at a time."""
    from PIL import Image

    width, height = image.size
    if width * height <= STRIP:
        return convert(image)
    made, rows = Image.new("RGB", image.size), max(1, STRIP // width)
    for top in range(0, height, rows):
        made.paste(convert(image.crop((0, top, width, min(top + rows, height)))), (0, top))
    return made


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

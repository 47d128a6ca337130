"""Disturbances of a stretch of a clip: the kinds of VideoSSR's Table 8, and those of its script."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

KINDS = {
    "saturation": "the colours are much too strong",
    "noise": "there is noise on the picture",
    "blur": "the picture is blurred",
    "grayscale": "the picture is black and white",
    "invert": "the colours are inverted",
    "channel-swap": "red and blue are swapped",
    "zoom-in": "the picture is zoomed in",
    "zoom-out": "the picture is zoomed out",
    "rotate-90": "the picture is turned by 90 degrees clockwise",
    "rotate-180": "the picture is turned by 180 degrees",
    "rotate-270": "the picture is turned by 270 degrees clockwise",
    "mirror": "left and right are mirrored",
    "slow": "everything goes at half the speed, at the same spacing of the frames",
    "fast": "everything goes at twice the speed, at the same spacing of the frames",
    "stutter": "the picture freezes on a few frames and jumps from one to the next",
    "shuffle": "the frames are in a wrong order",
    "swap": "another clip is shown",
}
"""Kind -> its description in the question."""
TRAINED = ("channel-swap", "mirror", "zoom-out", "rotate-180")
"""Kinds in VideoSSR's training."""
PACE = {"slow": 1, "fast": 4}
"""Source frames per step, in a clip in which a normal step has two."""
SEEN = 0.5
"""Minimal mean difference of a changed frame, of 255."""
STIRS = 0.2
"""Minimal mean difference of consecutive frames with motion, of 255."""


def disturbed(
    draw: random.Random, kind: str, frames_THWC: np.ndarray, first: int, last: int, other_THWC: np.ndarray | None = None
) -> np.ndarray:
    """The clip with the frames from `first` to before `last` disturbed; a copy. uint8 [T, H, W, 3].

    kind: of `KINDS`, except slow and fast, see `pace`. other_THWC: for swap, frames of another clip.
    """
    import numpy as np

    found = frames_THWC.copy()
    part = frames_THWC[first:last]
    if kind == "shuffle":
        found[first:last] = part[_shuffled(draw, last - first)]
    elif kind == "stutter":
        held = np.linspace(0, len(part) - 1, min(draw.randint(2, 5), len(part) - 1), dtype=int)
        found[first:last] = part[held[np.arange(len(part)) * len(held) // len(part)]]
    elif kind == "swap":
        assert other_THWC is not None
        found[first:last] = other_THWC[first:last]
    else:
        change = _change(draw, kind)
        found[first:last] = np.stack([change(frame) for frame in part])
    return found


def pace(kind: str, count: int, first: int, last: int) -> list[int]:
    """Indices of `count` frames of a clip that is read twice as densely, with a slower or faster stretch."""
    at, found = 0, []
    for number in range(count):
        found.append(at)
        at += PACE[kind] if first <= number < last else 2
    return found


def is_seen(before_THWC: np.ndarray, after_THWC: np.ndarray) -> bool:
    """Whether each frame has changed: a symmetric frame equals its mirror image."""
    import numpy as np

    apart_T = np.abs(before_THWC.astype(np.int16) - after_THWC).mean((1, 2, 3))
    return bool((apart_T >= SEEN).all())


def moves(frames_THWC: np.ndarray) -> bool:
    """Whether each frame differs from the next: equal frames have no order."""
    import numpy as np

    apart_T = np.abs(frames_THWC[1:].astype(np.int16) - frames_THWC[:-1]).mean((1, 2, 3))
    return bool((apart_T >= STIRS).all())


def _shuffled(draw: random.Random, count: int) -> list[int]:
    """A permutation of `count` frames, not the identity nor its reverse, that moves the first and the last one."""
    order = list(range(count))
    for _ in range(1000):
        draw.shuffle(order)
        if order[0] and order[-1] != count - 1 and order != list(range(count))[::-1]:
            return order
    return order[1:] + order[:1]


def _change(draw: random.Random, kind: str) -> Callable[[np.ndarray], np.ndarray]:
    """The change of each frame, uint8 [H, W, 3]; its strength is drawn once for all."""
    import numpy as np

    if kind == "noise":
        deviation, grain = draw.uniform(35, 70), np.random.default_rng(draw.getrandbits(64))
        return lambda f: np.clip(f + grain.normal(0, deviation, f.shape), 0, 255).astype(np.uint8)
    if kind in ("invert", "channel-swap", "mirror", "rotate-180"):
        plain: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "invert": lambda f: 255 - f,
            "channel-swap": lambda f: f[..., ::-1],
            "mirror": lambda f: f[:, ::-1],
            "rotate-180": lambda f: f[::-1, ::-1],
        }
        return plain[kind]
    scale = draw.uniform(1.3, 1.5) if kind == "zoom-in" else draw.uniform(1.2, 1.4)

    def changed(frame_HWC: np.ndarray) -> np.ndarray:
        from PIL import Image

        return np.asarray(_picture(Image.fromarray(frame_HWC), kind, scale))

    return changed


def _picture(picture: Image, kind: str, scale: float) -> Image:
    """The kinds that use Pillow; the size doesn't change."""
    from PIL import Image, ImageEnhance, ImageFilter

    width, height = picture.size
    if kind == "grayscale":
        return picture.convert("L").convert("RGB")
    if kind == "blur":
        return picture.filter(ImageFilter.GaussianBlur(2))
    if kind == "saturation":
        return ImageEnhance.Color(picture).enhance(2.0)
    if kind == "zoom-in":
        x, y = width * (1 - 1 / scale) / 2, height * (1 - 1 / scale) / 2
        return picture.resize(picture.size, Image.Resampling.LANCZOS, (x, y, width - x, height - y))
    if kind == "zoom-out":
        inner = picture.resize((max(1, int(width / scale)), max(1, int(height / scale))), Image.Resampling.LANCZOS)
    else:  # a quarter turn, resized
        inner = picture.transpose(Image.Transpose.ROTATE_270 if kind == "rotate-90" else Image.Transpose.ROTATE_90)
        fits = min(width / inner.width, height / inner.height)
        if fits != 1:
            inner = inner.resize((max(1, int(inner.width * fits)), max(1, int(inner.height * fits))), Image.Resampling.LANCZOS)
    sheet = Image.new("RGB", picture.size)
    sheet.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return sheet

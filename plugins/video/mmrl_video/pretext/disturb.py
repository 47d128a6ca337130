"""What anomaly grounding does to a stretch of a clip: the kinds of VideoSSR's Table 8, and those of its script beside them."""

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
"""Kind -> what the question says of it."""
TRAINED = ("channel-swap", "mirror", "zoom-out", "rotate-180")
"""Those that VideoSSR trains on."""
PACE = {"slow": 1, "fast": 4}
"""Frames that a step takes, of a clip in which an ordinary step takes two."""
SEEN = 0.5
"""Mean difference of a frame, of 255, from which it counts as changed."""
STIRS = 0.2
"""The same between two frames in a row, from which something moves."""


def disturbed(
    draw: random.Random, kind: str, frames_THWC: np.ndarray, first: int, last: int, other_THWC: np.ndarray | None = None
) -> np.ndarray:
    """The clip with the frames from `first` to before `last` disturbed; a copy. uint8 [T, H, W, 3].

    kind: of `KINDS`, but slow and fast, which change what is read, see `pace`. other_THWC: for swap, frames of another clip.
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
    """Which frames of a clip that is read twice as densely are shown, `count` of them, the stretch slower or faster."""
    at, found = 0, []
    for number in range(count):
        found.append(at)
        at += PACE[kind] if first <= number < last else 2
    return found


def is_seen(before_THWC: np.ndarray, after_THWC: np.ndarray) -> bool:
    """Whether each frame has changed: a mirrored frame may be its own image."""
    import numpy as np

    apart_T = np.abs(before_THWC.astype(np.int16) - after_THWC).mean((1, 2, 3))
    return bool((apart_T >= SEEN).all())


def moves(frames_THWC: np.ndarray) -> bool:
    """Whether each frame differs from the next: the order of a still picture can't be told."""
    import numpy as np

    apart_T = np.abs(frames_THWC[1:].astype(np.int16) - frames_THWC[:-1]).mean((1, 2, 3))
    return bool((apart_T >= STIRS).all())


def _shuffled(draw: random.Random, count: int) -> list[int]:
    """An order of `count` frames that is not theirs, nor its reverse, and in which the first and the last one have moved."""
    order = list(range(count))
    for _ in range(1000):
        draw.shuffle(order)
        if order[0] and order[-1] != count - 1 and order != list(range(count))[::-1]:
            return order
    return order[1:] + order[:1]


def _change(draw: random.Random, kind: str) -> Callable[[np.ndarray], np.ndarray]:
    """What is done to each frame, uint8 [H, W, 3]; how strongly is drawn once for all."""
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
    """The kinds that Pillow does; of the same size as before."""
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
    else:  # a quarter turn, made to fit
        inner = picture.transpose(Image.Transpose.ROTATE_270 if kind == "rotate-90" else Image.Transpose.ROTATE_90)
        fits = min(width / inner.width, height / inner.height)
        if fits != 1:
            inner = inner.resize((max(1, int(inner.width * fits)), max(1, int(inner.height * fits))), Image.Resampling.LANCZOS)
    sheet = Image.new("RGB", picture.size)
    sheet.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return sheet

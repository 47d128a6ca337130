"""Resize pictures on any device, bit for bit like Pillow; and center crops."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch

Mode = Literal["bicubic", "bilinear", "lanczos"]
BITS = 22
"""Bits of Pillow's fixed-point weights (its Resample.c, PRECISION_BITS for pictures of 8 bits)."""
REACH = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
"""Radius of a filter, in pixels of the smaller of the two pictures."""


def resize(pictures: torch.Tensor, height: int, width: int, mode: Mode = "bicubic") -> torch.Tensor:
    """uint8 [n, C, H, W] -> uint8 [n, C, height, width]: first along the width, rounded to uint8, then along the height (Pillow
    13 begins with the height if that is less work, never from square to square). Models were trained on Pillow's pictures;
    floating-point sums would change up to one number in eight."""
    if pictures.shape[3] != width:
        pictures = _along(pictures, 3, width, mode)
    return pictures if pictures.shape[2] == height else _along(pictures, 2, height, mode)


def center_crop(pictures: torch.Tensor, share: float) -> torch.Tensor:
    """[n, 3, H, W] -> the middle of each, with this share of its area and its proportions; one pixel at least."""
    height, width = pictures.shape[2:]
    high, wide = (max(1, round(side * math.sqrt(share))) for side in (height, width))
    top, left = (height - high) // 2, (width - wide) // 2
    return pictures[:, :, top : top + high, left : left + wide]


def crop_like_tensorflow(pictures: torch.Tensor, share: float, side: int) -> torch.Tensor:
    """uint8 [n, 3, H, W] -> uint8 [n, 3, side, side]: the middle with this share of the area, as TensorFlow's `crop_and_resize`
    samples it: its edges lie between pixels, and each number is bilinear between the four nearest pixels. OpenVLA is fine-tuned
    and evaluated on such crops (`center_crop_image` of OpenVLA-OFT, which converts to uint8 like TensorFlow's
    `convert_image_dtype`: times 255.5, cut off)."""
    found = pictures.float() / 255
    edge = math.sqrt(share)
    for axis in (2, 3):
        size = pictures.shape[axis]
        steps = torch.arange(side, device=pictures.device, dtype=torch.float32)
        at = (1 - edge) / 2 * (size - 1) + steps * (edge * (size - 1) / max(side - 1, 1))
        low = at.floor().long().clamp(0, size - 1)
        high = (low + 1).clamp_max(size - 1)
        part = (at - low).view(-1, *[1] * (3 - axis))
        found = found.index_select(axis, low) * (1 - part) + found.index_select(axis, high) * part
    return (found.clamp(0, 1) * 255.5).floor().clamp_max(255).to(torch.uint8)


def _along(pictures: torch.Tensor, axis: int, size: int, mode: Mode) -> torch.Tensor:
    """Resize one axis of uint8 pictures. Sums are of integers, so their order doesn't matter."""
    rows = pictures.transpose(axis, 2).contiguous()  # whole rows are copied many times as fast as single numbers
    found = rows.new_full((*rows.shape[:2], size, rows.shape[3]), 1 << (BITS - 1), dtype=torch.int32)
    for places, weights in _taps_on(rows.device, rows.shape[2], size, mode):
        found.addcmul_(rows.index_select(2, places).int(), weights[:, None])
    return (found >> BITS).clamp_(0, 255).to(torch.uint8).transpose(axis, 2)


@lru_cache(maxsize=64)
def _taps_on(device: torch.device, before: int, after: int, mode: Mode) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """`_taps` on a device, where each call would wait for them."""
    return [
        (torch.tensor(places, device=device), torch.tensor(weights, dtype=torch.int32, device=device))
        for places, weights in _taps(before, after, mode)
    ]


@lru_cache(maxsize=64)
def _taps(before: int, after: int, mode: Mode) -> list[tuple[list[int], list[int]]]:
    """For each tap of the filter, of each new pixel: (index of the old pixel, its weight times 2 ** BITS)."""
    scale = before / after
    wide = max(scale, 1.0)
    reach = REACH[mode] * wide
    pixels = []
    for i in range(after):
        centre = (i + 0.5) * scale
        first, end = max(0, int(centre - reach + 0.5)), min(before, int(centre + reach + 0.5))
        heights = [_height((x - centre + 0.5) / wide, mode) for x in range(first, end)]
        total = sum(heights)
        pixels.append([(x, _nearest(h / total * (1 << BITS))) for x, h in enumerate(heights, first)])
    count = max(map(len, pixels))
    rows = [row + [(0, 0)] * (count - len(row)) for row in pixels]
    return [([row[k][0] for row in rows], [row[k][1] for row in rows]) for k in range(count)]


def _height(x: float, mode: Mode) -> float:
    """Value of a filter at a distance: the triangle, the cubic of Keys with a = -0.5 (Cubic Convolution Interpolation), or
    Lanczos' with three lobes on each side."""
    x = abs(x)
    if mode == "bilinear":
        return max(0.0, 1.0 - x)
    if mode == "lanczos":
        return _sinc(x) * _sinc(x / 3) if x < 3 else 0.0
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1.0
    return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 if x < 2 else 0.0


def _sinc(x: float) -> float:
    return math.sin(math.pi * x) / (math.pi * x) if x else 1.0


def _nearest(x: float) -> int:
    """Round to an integer, halves away from zero."""
    return int(x + math.copysign(0.5, x))

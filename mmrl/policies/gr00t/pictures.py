"""Pictures as GR00T sees them: scaled, cropped to the middle, scaled back. n pictures, H x W pixels.

A checkpoint says by `use_albumentations` which of two ways it was trained with. `area` is that of Isaac-GR00T's
`build_image_transformations_albumentations` (gr00t/model/gr00t_n1d7/image_augmentations.py), whose filter is OpenCV's INTER_AREA.
The other is `bicubic` for N1.7, as LeRobot has it (0.6.1, `_transform_n1_7_image_for_vlm_torch`), and `bilinear` for N1.6
(Isaac-GR00T, `build_image_transformations` of gr00t/model/gr00t_n1d6/image_augmentations.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch.nn.functional import interpolate, pad

from mmrl.api.errors import UserError
from mmrl.policies.gr00t.config import N1_6, N1_7, Version
from mmrl.policies.resizing import resize

TARGET, CROP = (256, 256), (230, 230)
"""Sizes where a checkpoint gives no target."""
Taps = list[tuple[torch.Tensor, torch.Tensor]]
"""For each tap of a filter along an axis: (index of the old pixel, its weight) for each new pixel."""
COEFFICIENT = 2048
"""One, in the fixed-point weights of OpenCV's linear filter (INTER_RESIZE_COEF_SCALE of its resize.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    way: Literal["area", "bicubic", "bilinear"]
    target: tuple[int, int]
    """Height and width."""
    edge: int | None
    """The shorter side, for `area`: then proportions are kept. For `bicubic`, both sides before the crop. Not for `bilinear`."""
    share: float
    """The share of each side that is kept; 1 for no crop."""
    square: bool
    """Black bars make a picture square first."""
    unit: int = 1
    """Sides become the nearest multiples of it at last."""
    crop: tuple[int, int] | None = None
    """Height and width of the middle that is kept, for `bilinear`."""

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 3, H, W] -> uint8 [n, 3, height, width]."""
        if self.square:
            pictures = _squared(pictures)
        return self._whole(self._scaled(pictures))

    def _scaled(self, pictures: torch.Tensor) -> torch.Tensor:
        if self.way == "area":
            return self._area(self._cropped(self._area(pictures), math.floor))
        if self.way == "bilinear":
            scaled = _smooth(pictures, *self.target, "bilinear")
            return _smooth(_middle(scaled, *(self.crop or self.target), halves=round), *self.target, "bilinear")
        edge = self.edge or self.target[0]
        return _smooth(self._cropped(_smooth(pictures, edge, edge), round), *self.target)

    def _whole(self, pictures: torch.Tensor) -> torch.Tensor:
        """Isaac-GR00T's `fetch_image` has limits of pixels, which these sizes are far from."""
        high, wide = (max(self.unit, round(side / self.unit) * self.unit) for side in pictures.shape[2:])
        return pictures if self.unit == 1 else resize(pictures, high, wide)

    def _area(self, pictures: torch.Tensor) -> torch.Tensor:
        if self.edge is None:
            return resize_by_area(pictures, *self.target)
        scale = self.edge / min(pictures.shape[2:])
        return resize_by_area(pictures, *(max(1, round(side * scale)) for side in pictures.shape[2:]))

    def _cropped(self, pictures: torch.Tensor, whole: Any) -> torch.Tensor:
        """whole: rounds the sides of the crop."""
        if self.share >= 1:
            return pictures
        high, wide = (max(1, int(whole(side * self.share))) for side in pictures.shape[2:])
        return _middle(pictures, high, wide)


def framing(settings: Mapping[str, Any], version: Version = N1_7, unit: int = 1) -> Framing:
    """From `processor_kwargs` of a processor_config.json. unit: see `Framing`. Raises UserError for sizes that can't be meant."""
    target, crop = (settings.get(name) for name in ("image_target_size", "image_crop_size"))
    edge, share = settings.get("shortest_image_edge"), settings.get("crop_fraction")
    older, area = version is N1_6, bool(settings.get("use_albumentations"))
    if target is None:
        target, crop = TARGET, CROP
        if not (older and area):
            edge = share = None
    for name, value, most in (("image_target_size", target, 2), ("image_crop_size", crop, 2), ("shortest_image_edge", edge, 0)):
        sides = value if most else [value]
        if value is not None and not (
            isinstance(sides, list | tuple) and len(sides) == (most or 1) and all(type(s) is int and 0 < s <= 4096 for s in sides)
        ):
            raise UserError(f"processor_config.json: {name} = {value!r:.60} must be pixels, from 1 to 4096")
    if share is None:
        share = crop[0] / target[0] if crop is not None else 1.0
    if isinstance(share, bool) or not isinstance(share, int | float) or not share > 0:
        raise UserError(f"processor_config.json: crop_fraction = {share!r:.60} must be a share of a side, above 0 and at most 1")
    return Framing(
        way="area" if area else "bilinear" if older else "bicubic",
        target=(target[0], target[1]),
        edge=edge,
        share=min(float(share), 1.0),
        square=bool(settings.get("letter_box_transform", older and not area)),
        unit=unit,
        crop=(crop[0], crop[1]) if older and crop is not None else None,
    )


def _squared(pictures: torch.Tensor) -> torch.Tensor:
    height, width = pictures.shape[2:]
    high, wide = max(0, width - height), max(0, height - width)
    return pad(pictures, (wide // 2, wide - wide // 2, high // 2, high - high // 2))


def _middle(pictures: torch.Tensor, high: int, wide: int, halves: Callable[[float], int] = math.floor) -> torch.Tensor:
    """halves: what becomes of half a pixel at the edges."""
    top, left = (halves((side - kept) / 2) for side, kept in zip(pictures.shape[2:], (high, wide), strict=True))
    return pictures[:, :, top : top + high, left : left + wide]


def _smooth(pictures: torch.Tensor, height: int, width: int, mode: str = "bicubic") -> torch.Tensor:
    """With antialiasing. On a CPU torch has integer arithmetic of its own for uint8; elsewhere a number may differ by 1."""
    if pictures.shape[2:] == (height, width):
        return pictures
    given = pictures if pictures.device.type == "cpu" else pictures.float()
    found = interpolate(given, (height, width), mode=mode, antialias=True, align_corners=False)
    return found if found.dtype == torch.uint8 else found.round().clamp(0, 255).to(torch.uint8)


def resize_by_area(pictures: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """uint8 [n, 3, H, W] -> uint8 [n, 3, height, width], as OpenCV's INTER_AREA: the mean over the area that a new pixel covers
    where both sides shrink, otherwise linear between two pixels (resize.cpp: `ResizeArea_Invoker`, `HResizeLinear`,
    `VResizeLinear`)."""
    before, at = pictures.shape[2:], pictures.device
    if before == (height, width):
        return pictures
    if before[0] >= height and before[1] >= width:
        found = _along(_along(pictures.float(), 3, _area_taps(before[1], width, at)), 2, _area_taps(before[0], height, at))
        halved = before == (2 * height, 2 * width)  # for which OpenCV has arithmetic of its own: halves are rounded up
        return ((found + 0.5).floor() if halved else found.round()).clamp(0, 255).to(torch.uint8)
    rows = _along(pictures.int(), 3, _linear_taps(before[1], width, at)) >> 4
    parts = [rows.index_select(2, i) * _column(weight, 2) >> 16 for i, weight in _linear_taps(before[0], height, at)]
    return ((sum(parts[1:], parts[0]) + 2) >> 2).clamp(0, 255).to(torch.uint8)


def _along(pictures: torch.Tensor, axis: int, taps: Taps) -> torch.Tensor:
    """Sums of one axis, tap by tap in their order."""
    parts = [pictures.index_select(axis, at) * _column(weight, axis) for at, weight in taps]
    return sum(parts[1:], parts[0])


def _column(weight: torch.Tensor, axis: int) -> torch.Tensor:
    return weight if axis == 3 else weight[:, None]


@lru_cache(maxsize=64)
def _area_taps(before: int, after: int, device: torch.device) -> Taps:
    """float32 weights: the share of a new pixel that an old one covers (resize.cpp, `computeResizeAreaTab`). They stay on the
    device, where each call would wait for them."""
    scale = before / after
    pixels = []
    for i in range(after):
        low, high = i * scale, (i + 1) * scale
        cell = min(scale, before - low)
        end = min(math.floor(high), before - 1)
        first = min(math.ceil(low), end)
        row = [(first - 1, (first - low) / cell)] if first - low > 1e-3 else []
        row += [(x, 1 / cell) for x in range(first, end)]
        if high - end > 1e-3:
            row.append((end, min(high - end, 1.0, cell) / cell))
        pixels.append(row)
    return _as_taps(pixels, torch.float32, device)


@lru_cache(maxsize=64)
def _linear_taps(before: int, after: int, device: torch.device) -> Taps:
    """Fixed-point weights of the two nearest pixels, as the area filter asks for them where a side grows."""
    scale, inverse = before / after, after / before
    pixels = []
    for i in range(after):
        at = math.floor(i * scale)
        part = float(torch.tensor((i + 1) - (at + 1) * inverse, dtype=torch.float32))
        part = 0.0 if part <= 0 else part - math.floor(part)
        if at >= before - 1:
            at, part = before - 1, 0.0
        pixels.append([(at, round((1 - part) * COEFFICIENT)), (min(at + 1, before - 1), round(part * COEFFICIENT))])
    return _as_taps(pixels, torch.int32, device)


def _as_taps(pixels: list[list[tuple[int, Any]]], dtype: torch.dtype, device: torch.device) -> Taps:
    count = max(map(len, pixels))
    rows = [row + [(0, 0)] * (count - len(row)) for row in pixels]
    return [
        (
            torch.tensor([row[k][0] for row in rows], device=device),
            torch.tensor([row[k][1] for row in rows], dtype=dtype, device=device),
        )
        for k in range(count)
    ]

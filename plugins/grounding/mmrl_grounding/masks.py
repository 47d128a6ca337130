"""Masks of regions of a picture, and the verifier of points in them."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from mmrl import Case, Score
from mmrl_grounding import reading
from mmrl_grounding.coordinates import format_of, in_pixels


def region(case: Case) -> Score:
    """1 when the one point that is answered is on a pixel of the mask: what Where2Place (Yuan et al. 2024, RoboPoint) and
    RefSpatial-Bench report, if an answer is one point.

    Known exploits: none of the point alone; where regions are large, the middle of the picture is often in one.
    """
    text, why = reading.said(case)
    at = None if text is None else reading.point(text, format_of(case).y_first)
    if at is None:
        return Score(0.0, detail=why or "no point, or more than one")
    mask = read(case.answer["mask"])
    size, here = case.image_sizes[0] if case.image_sizes else mask.shape[::-1], in_pixels(at, case)
    if not all(0 <= v < side for v, side in zip(here, size, strict=True)):
        return Score(0.0, detail="beyond the picture")
    inside = holds(mask, here, size)
    return Score(float(inside), detail="inside" if inside else "outside")


def holds(mask: np.ndarray, at: Sequence[float], size: Sequence[int]) -> bool:
    """Whether a point is in a region. mask: bool [H, W]. at: x, y in pixels of the picture, whose width and height are `size`."""
    x, y = (np.floor(v * own / side) for v, own, side in zip(at, mask.shape[::-1], size, strict=True))
    return bool(0 <= x < mask.shape[1] and 0 <= y < mask.shape[0] and mask[int(y), int(x)])


def deepest(mask: np.ndarray, most: int) -> list[tuple[float, float]]:
    """Middles (x, y) of so many pixels of a mask, those that are the farthest from its edge first."""
    from scipy.ndimage import distance_transform_edt

    depths = distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    first = np.argsort(-depths, axis=None, kind="stable")[:most]
    return [(x + 0.5, y + 0.5) for y, x in zip(*np.unravel_index(first, mask.shape), strict=True) if mask[y, x]]


@functools.lru_cache(64)
def read(text: str) -> np.ndarray:
    """bool [H, W], as `written` was given it."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("L")) > 127


def written(mask: np.ndarray) -> str:
    """A PNG in base64, as answers are plain data."""
    Image.fromarray(mask).save(file := io.BytesIO(), "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()

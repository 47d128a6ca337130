"""Similarity of two pictures: 1 for the target itself, 0 for a canvas of any single colour."""

from __future__ import annotations

import cv2
import numpy as np
from PIL import Image

Pixels = np.ndarray
"""float32 [H, W, 3] or [H, W], 0 to 1."""
MAX_COMPARED = 224
"""Pixels of the longer side at which pictures are compared; larger ones are reduced."""
MAX_RENDERED = 512
"""Pixels of the longer side at which an answer is rendered, before it is reduced as the target is."""
FLAT = 1e-6
"""Variance below which a picture counts as one colour."""


def pixels(picture: Image.Image) -> Pixels:
    return np.asarray(picture, dtype=np.float32) / 255


def rendered(size: tuple[int, int]) -> tuple[int, int]:
    """The size at which an answer is rendered: the target's own, so that the right code gives exactly the same picture."""
    scale = min(1.0, MAX_RENDERED / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def reduced(size: tuple[int, int]) -> tuple[int, int]:
    """The size at which a picture is compared."""
    scale = min(1.0, MAX_COMPARED / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def pixel(target: Pixels, shown: Pixels) -> float:
    """1 - |target - shown|^2 / |target - its mean colour|^2, at least 0: the share of the target that is explained. The best
    canvas of one colour has 0. For a target of one colour: 1 if it is matched within 1%."""
    error, spread = float(np.mean((target - shown) ** 2)), float(np.mean(target.var(axis=(0, 1))))
    return float(error < 1e-4) if spread < FLAT else max(0.0, 1 - error / spread)


def ssim(target: Pixels, shown: Pixels) -> float:
    """Structural similarity of the grey pictures (Wang et al. 2004, Gaussian window, sigma 1.5), less that of the better of a
    white canvas and one of the mean grey, scaled so that the target has 1."""
    grey, other = (cv2.cvtColor(p, cv2.COLOR_RGB2GRAY) for p in (target, shown))
    if float(grey.var()) < FLAT:
        return float(np.mean((grey - other) ** 2) < 1e-4)
    free = max(_ssim(grey, np.full_like(grey, level)) for level in (1.0, float(grey.mean())))
    return min(1.0, max(0.0, (_ssim(grey, other) - free) / max(1 - free, 1e-6)))


def _ssim(a: Pixels, b: Pixels) -> float:
    mean_a, mean_b, aa, bb, ab = (cv2.GaussianBlur(x, (11, 11), 1.5) for x in (a, b, a * a, b * b, a * b))
    aa, bb, ab = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    return float(np.mean(((2 * mean_a * mean_b + c1) * (2 * ab + c2)) / ((mean_a**2 + mean_b**2 + c1) * (aa + bb + c2))))


def edges(target: Pixels, shown: Pixels) -> float:
    """1 - |e - f|^2 / |e|^2, at least 0, of the blurred edges e of the target and f of the picture. A picture without edges has
    0, unless the target has none either."""
    wanted, found = edge_map(target), edge_map(shown)
    whole = float(np.mean(wanted**2))
    return float(not found.any()) if whole < FLAT else max(0.0, 1 - float(np.mean((wanted - found) ** 2)) / whole)


def edge_map(picture: Pixels) -> Pixels:
    """Canny's edges, made 3 pixels wide and blurred over 13, 0 to 1: as in RLRF."""
    grey = cv2.cvtColor((picture * 255).astype(np.uint8), cv2.COLOR_RGB2GRAY)
    wide = cv2.dilate(cv2.Canny(grey, 100, 200), np.ones((3, 3), np.uint8))
    return cv2.GaussianBlur(wide.astype(np.float32) / 255, (13, 13), 0)


def normalised(picture: Pixels) -> Pixels:
    """Zero mean and unit variance over all pixels and channels; zeros for one colour."""
    spread = float(picture.std())
    return (picture - picture.mean()) / spread if spread > 1e-6 else np.zeros_like(picture)

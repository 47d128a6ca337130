"""Pictures as pi0 and pi0.5 read them: scaled until they fit, with black around them."""

from __future__ import annotations

import torch
from torch.nn.functional import interpolate, pad

from mmrl.policies.resizing import center_crop, resize

RESIZES = ("openpi", "lerobot")


def framed(pictures_nHWC: torch.Tensor, crop: float, side: int, how: str) -> torch.Tensor:
    """uint8 [n, H, W, 3] -> float32 [n, 3, side, side] in [-1, 1]. how: one of `RESIZES`; openpi's JAX code resizes as Pillow
    does, LeRobot's `resize_with_pad_torch` interpolates between neighbouring pixels even where it shrinks."""
    pictures = center_crop(pictures_nHWC.permute(0, 3, 1, 2), crop)
    ratio = max(pictures.shape[2:]) / side
    high, wide = (min(side, max(1, int(s / ratio))) for s in pictures.shape[2:])
    if how == "lerobot":
        inner = interpolate(pictures.float(), (high, wide), mode="bilinear", align_corners=False)
    else:
        inner = resize(pictures, high, wide, "bilinear").float()
    top, left = (side - high) // 2, (side - wide) // 2
    return pad(inner / 127.5 - 1, (left, side - wide - left, top, side - high - top), value=-1.0)

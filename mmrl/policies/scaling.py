"""Pictures to another size, as Pillow does it: bicubic without aliasing, along one side and then along the other."""

from __future__ import annotations

import torch
from torch.nn.functional import interpolate


def scaled(pictures: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """uint8 [n, 3, H, W] -> this size. Models were trained on Pillow's pictures, which are rounded and cut to 0 to 255 between
    the two passes, too."""
    found = pictures.float()
    for size in ((found.shape[2], width), (height, width)):
        if tuple(found.shape[2:]) != size:
            found = interpolate(found, size, mode="bicubic", antialias=True, align_corners=False).round().clamp(0, 255)
    return found.to(torch.uint8)

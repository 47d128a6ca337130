"""Pictures as X-VLA reads them: normalised by the means and deviations of ImageNet."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn.functional import interpolate, pad

from mmrl.policies.resizing import center_crop, resize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def framed(pictures_nHWC: torch.Tensor, crop: float, sides: tuple[int, int] | None, how: str, imagenet: bool) -> torch.Tensor:
    """uint8 [n, H, W, 3] -> float32 [n, 3, height, width]. sides: height and width; None keeps what is there. how: `lerobot`
    interpolates between neighbouring pixels until the picture fits, with zeros at the left and above (lerobot 0.6.1,
    policies/common/vla_utils.py, resize_with_pad); `published` fills the whole, as CLIPImageProcessor does. imagenet: whether
    pictures are normalised."""
    pictures = center_crop(pictures_nHWC.permute(0, 3, 1, 2), crop)
    if how == "published" and sides is not None:
        pictures = resize(pictures.contiguous(), *sides, "bicubic")
    found = pictures.float() / 255
    if imagenet:
        mean, std = _imagenet(found.device)
        found = (found - mean) / std
    if sides is None or found.shape[2:] == sides:
        return found
    ratio = max(have / wanted for have, wanted in zip(found.shape[2:], sides, strict=True))
    high, wide = (max(1, int(side / ratio)) for side in found.shape[2:])
    found = interpolate(found, (high, wide), mode="bilinear", align_corners=False)
    return pad(found, (sides[1] - wide, 0, sides[0] - high, 0))


@cache
def _imagenet(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(means, deviations), float32 [3, 1, 1] each, on a device, where each call would wait for them."""
    mean, std = (torch.tensor(of, device=device).view(3, 1, 1) for of in (MEAN, STD))
    return mean, std

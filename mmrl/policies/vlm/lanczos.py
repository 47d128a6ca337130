"""Image processors that scale by Lanczos' filter do it as Pillow does, on any device.

Those of Idefics3, SmolVLM and Muse Glimmer do, and their models were trained on Pillow's pictures. transformers (5.24) gives them
a bicubic filter instead for pictures on a GPU, and everywhere with torchvision before 0.27: noise is then off by 7 of 255 on
average. torchvision's own filter of Lanczos, from 0.27 on and on a CPU alone, is off by 2 at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend
from transformers.image_utils import PILImageResampling, SizeDict

from mmrl.policies.resizing import resize

AT_ONCE = 2**26
"""Numbers that are scaled together on a GPU: 256 MiB of sums."""


class PillowLanczos(TorchvisionBackend):
    """Stands between the class of an image processor and torchvision's way of scaling."""

    def resize(self, image: torch.Tensor, size: SizeDict, resample: Any = None, **kwargs: Any) -> torch.Tensor:
        """[..., C, H, W] -> [..., C, `size.height`, `size.width`]. Other filters, numbers that aren't uint8 and sizes that
        transformers has yet to work out are left to it."""
        if resample != PILImageResampling.LANCZOS or image.dtype != torch.uint8 or not (size.height and size.width):
            return super().resize(image, size, resample=resample, **kwargs)
        rows = image.reshape(-1, *image.shape[-3:])
        by_pillow = rows.device.type == "cpu" and rows.shape[1] == 3  # which is several times as fast for large pictures
        scaled = (_by_pillow if by_pillow else _by_torch)(rows, size.height, size.width)
        return scaled.reshape(*image.shape[:-2], size.height, size.width)


def _by_torch(pictures: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """A few pictures at a time, as sums of integers take 4 bytes for each number."""
    at_once = max(1, AT_ONCE // (pictures.shape[1] * max(height, pictures.shape[2]) * width))
    return torch.cat([resize(some, height, width, "lanczos") for some in pictures.split(at_once)])


def _by_pillow(pictures: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The same of uint8 [n, 3, H, W] on a CPU, in two calls: Pillow 13 would take the height first where that is less work."""
    filter_ = Image.Resampling.LANCZOS
    shown = [Image.fromarray(rows.permute(1, 2, 0).numpy()) for rows in pictures]
    scaled = [np.asarray(one.resize((width, one.height), filter_).resize((width, height), filter_)) for one in shown]
    return torch.from_numpy(np.stack(scaled)).permute(0, 3, 1, 2)


def use_pillows_lanczos(processor: Any) -> None:
    """Make the processors of pictures and videos of a model's processor do so, if they scale by this filter."""
    for name in ("image_processor", "video_processor"):
        one = getattr(processor, name, None)
        if isinstance(one, TorchvisionBackend) and one.resample == PILImageResampling.LANCZOS:
            kind = type(one)
            one.__class__ = type(kind.__name__, (kind, PillowLanczos), {"__module__": kind.__module__})  # its saved name stays

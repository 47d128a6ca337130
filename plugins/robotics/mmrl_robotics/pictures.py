"""One frame of a demonstration, from a table's cell or a video."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from mmrl import UserError
from mmrl.api.errors import display_path
from mmrl.api.media.images import load_image
from mmrl.api.media.video_files import open_video

TOLERANCE_S = 1e-4
"""Maximal distance of a frame's time from the time of its step; LeRobot's default."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures of one size."""

    folder: Path
    """The folder of relative paths in cells."""
    where: str
    """Name of the source, for messages."""
    size: tuple[int, int] | None
    """Required (height, width)."""

    def of_cell(self, cell: Any) -> torch.Tensor:
        """uint8 [H, W, 3] of `{"bytes": ..., "path": ...}`, the form of pictures in `datasets`."""
        import numpy

        known = isinstance(cell, Mapping) and (cell.get("bytes") or cell.get("path"))
        if not known:
            raise UserError(f"{self.where} is {cell!r:.60}, not a picture: correct or remove the episode")
        image = load_image(known if isinstance(known, bytes) else self.folder / known, name=self.where)
        return self._fits(torch.from_numpy(numpy.array(image)))

    def of_video(self, path: Path, time_s: float) -> torch.Tensor:
        """uint8 [H, W, 3] of the frame at that time."""
        if not path.is_file():
            raise UserError(f"{display_path(path)} does not exist: download the data set with its videos")
        tolerance = TOLERANCE_S + abs(time_s) * 2**-22  # times are stored as float32
        best: Any = None
        with open_video(str(path)) as (video, stream):
            base = stream.time_base or Fraction(1, 1000)
            video.seek(int((time_s + tolerance) / base), stream=stream)  # to the key frame before it
            for frame in video.decode(stream):
                if frame.time is None:
                    continue
                if best is None or abs(frame.time - time_s) < abs(best.time - time_s):
                    best = frame
                if frame.time >= time_s:
                    break
            shown = None if best is None else best.to_ndarray(format="rgb24")
        if shown is None or abs(best.time - time_s) > tolerance:
            nearest = "it has none there" if best is None else f"the nearest is at {best.time:.4f} s"
            raise UserError(f"{display_path(path)} has no frame at {time_s:.4f} s, for {self.where}: {nearest}; encode it again")
        return self._fits(torch.from_numpy(shown))

    def _fits(self, shown_HW3: torch.Tensor) -> torch.Tensor:
        size = tuple(shown_HW3.shape[:2])
        if self.size is not None and size != self.size:
            raise UserError(
                f"{self.where} has {size[1]} x {size[0]} pixels, and meta/info.json says {self.size[1]} x {self.size[0]}: "
                "correct one of them"
            )
        return shown_HW3

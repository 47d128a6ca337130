"""Clips for tests: frames whose grey tells their number, written to real files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def grey(number: int) -> int:
    """Of frame `number`, of at most fifty."""
    return 5 + 5 * number


def frames(count: int, width: int = 64, height: int = 48) -> np.ndarray:
    """uint8 [T, H, W, 3]: each of one grey, its left half darker, its upper quarter lighter."""
    made = np.stack([np.full((height, width, 3), grey(n), np.uint8) for n in range(count)])
    made[:, :, : width // 2] //= 2
    return made


def write(
    path: Path, pictures: np.ndarray, fps: int = 25, codec: str = "libx264", times: list[float] | None = None, **options
) -> Path:
    """A real file. times: seconds of each frame, where the rate varies."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps, options=options or {"crf": "10"} if codec == "libx264" else options)
        stream.width, stream.height, stream.pix_fmt = pictures.shape[2], pictures.shape[1], "yuv420p"
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = round(1000 * times[number]), stream.codec_context.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path

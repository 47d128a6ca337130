"""Files of LeRobot's format 3.0, each of which holds many episodes: tables with a row group for each, and videos on end.

The next episode begins a new file when the last has reached its size.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy

from mmrl import UserError

CHUNK = 1000
"""Files per folder."""
TABLE_MB, VIDEO_MB = 100, 200
"""LeRobot's sizes of files."""
TABLE = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
SCALARS = frozenset(("timestamp", "frame_index", "episode_index", "index", "task_index"))
"""Keys with one number, which is no list in a table."""


class Files:
    """Numbered files, of which one is written at a time."""

    def __init__(self, folder: Path, pattern: str, most_mb: float, video_key: str = "") -> None:
        self.folder, self.pattern, self.most, self.video_key = folder, pattern, most_mb * 2**20, video_key
        self.number = 0
        self.opened: Any = None

    def place(self) -> dict[str, int]:
        """Where the next episode goes."""
        return {"chunk_index": self.number // CHUNK, "file_index": self.number % CHUNK}

    def path(self) -> Path:
        path = self.folder / self.pattern.format(**self.place(), video_key=self.video_key)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def turn(self) -> None:
        """Close the file if it is large enough: the next episode begins another."""
        if self.opened is not None and self.path().stat().st_size >= self.most:
            self.close()
            self.number += 1

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None


class Tables(Files):
    """The tables of steps."""

    def __init__(self, folder: Path, features: Mapping[str, Any], most_mb: float = TABLE_MB) -> None:
        super().__init__(folder, TABLE, most_mb)
        self.features = {key: feature for key, feature in features.items() if feature["dtype"] != "video"}

    def add(self, rows: Mapping[str, numpy.ndarray]) -> dict[str, int]:
        """Write an episode; returns where it is. rows: key -> [T, ...]."""
        import datasets
        import pyarrow.parquet

        kinds: dict[str, Any] = {}
        columns: dict[str, Any] = {}
        for key, feature in self.features.items():
            if feature["dtype"] == "image":
                kinds[key], columns[key] = datasets.Image(), [{"bytes": _png(of), "path": None} for of in rows[key]]
                continue
            value, width = datasets.Value(feature["dtype"]), feature["shape"][0]
            one = key in SCALARS or width == 1
            kinds[key] = value if one else datasets.Sequence(value, length=width)
            columns[key] = (rows[key].reshape(-1) if one else rows[key]).tolist()
        table = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds)).with_format("arrow")[:]
        self.turn()
        self.opened = self.opened or pyarrow.parquet.ParquetWriter(self.path(), table.schema)
        self.opened.write_table(table)
        return self.place()


class Videos(Files):
    """The videos of a camera: H.264 with a key frame every second frame, as in LeRobot, for quick access."""

    def __init__(self, folder: Path, key: str, fps: float, most_mb: float = VIDEO_MB) -> None:
        super().__init__(folder, VIDEO, most_mb, key)
        self.fps = Fraction(fps).limit_denominator(1000)
        self.frames = 0
        """In the file so far."""
        self.stream: Any = None

    def add(self, pictures_THW3: numpy.ndarray) -> dict[str, float]:
        """Write an episode; returns its file, and the times in seconds between which it is there."""
        import av

        height, width = pictures_THW3.shape[1:3]
        if height % 2 or width % 2:
            raise UserError(f"pictures of {width} x {height} pixels can't be encoded as H.264: use even sides, or no video")
        self.turn()
        if self.opened is None:
            self.opened, self.frames = av.open(str(self.path()), "w"), 0
            self.stream = self.opened.add_stream("libx264", rate=self.fps, options={"crf": "12", "g": "2"})
            self.stream.width, self.stream.height, self.stream.pix_fmt = width, height, pixel_format(height, width)
        begin = self.frames
        for picture in pictures_THW3:
            self.opened.mux(self.stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        self.frames += len(pictures_THW3)
        return {**self.place(), "from_timestamp": float(begin / self.fps), "to_timestamp": float(self.frames / self.fps)}

    def close(self) -> None:
        if self.opened is not None:
            self.opened.mux(self.stream.encode())
        super().close()


def pixel_format(height: int, width: int) -> str:
    """Small pictures keep their colours at full size."""
    return "yuv444p" if min(height, width) < 128 else "yuv420p"


def _png(picture: numpy.ndarray) -> bytes:
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(picture).save(held, "PNG")
    return held.getvalue()

"""Clips as files: encoded once, kept in a folder that all runs share and that doesn't grow without bound."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from mmrl_video.drawn.story import Story, paint

if TYPE_CHECKING:
    import numpy as np

KEEP_BYTES = 2**30
"""The folder's bound: beyond it those that were not used for the longest time are removed."""
SAFE_S = 3600.0
"""What was used within so many seconds is not removed: somebody may be about to read it."""
LOOK_EVERY = 64
"""Files that a process writes between two looks at the folder's size."""
CODECS = {"libx264": {"crf": "6", "preset": "veryfast"}, "mpeg4": {"qscale:v": "1", "q:v": "1"}}
"""Name -> options that keep colours; the first that is there is taken."""

_written = 0


def file_of(story: Story) -> str:
    """The path of the clip: painted and encoded where no run has done so before."""
    global _written
    codec = _codec()
    path = folder() / f"{story.digest()}-{codec}.mp4"
    try:
        os.utime(path)
        there = path.stat().st_size > 0  # a machine that went down may leave an empty file
    except FileNotFoundError:
        there = False
    if not there:
        encode(paint(story), story.rate, path)
        _written += 1
        if _written % LOOK_EVERY == 0:
            clear(path.parent, KEEP_BYTES)
    return str(path)


def encode(frames_THWC: np.ndarray, rate: int, path: Path) -> None:
    """Writes an mp4 of `rate` frames a second, uint8 [T, H, W, 3] with even H and W. Nobody sees half of it."""
    import av

    codec = _codec()
    handle, aside = tempfile.mkstemp(suffix=".mp4", prefix=".half-", dir=path.parent)
    os.close(handle)
    try:
        with av.open(aside, "w", format="mp4") as box:
            stream = box.add_stream(codec, rate=Fraction(rate), options=dict(CODECS[codec]))
            assert isinstance(stream, av.VideoStream)
            stream.height, stream.width = frames_THWC.shape[1:3]
            stream.pix_fmt = "yuv420p"
            stream.codec_context.thread_count = 1  # the same bytes on every run
            if codec == "mpeg4":
                stream.codec_context.bit_rate = 2**24
            for frame_HWC in frames_THWC:
                box.mux(stream.encode(av.VideoFrame.from_ndarray(frame_HWC, format="rgb24")))
            box.mux(stream.encode())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        raise


@functools.cache
def folder() -> Path:
    """Where clips are kept: `mmrl/clips` in the user's folder for caches, or, where that can't be written, a folder of this
    process that goes when it ends."""
    base = os.environ.get("XDG_CACHE_HOME")
    kept = (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "mmrl" / "clips"
    try:
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=kept):
            return kept
    except (OSError, RuntimeError):  # read-only, no home: nothing can be shared here
        own, owner = tempfile.mkdtemp(prefix="mmrl-clips-"), os.getpid()
        atexit.register(lambda: shutil.rmtree(own, ignore_errors=True) if os.getpid() == owner else None)
        return Path(own)


def clear(kept: Path, most_bytes: int, now: float | None = None) -> int:
    """Removes the clips that were not used for the longest time, until the folder holds at most so many bytes; those of the last
    `SAFE_S` stay. Gives how many were removed. Several processes may do so at once."""
    now, found, removed = time.time() if now is None else now, [], 0
    for entry in os.scandir(kept):
        with contextlib.suppress(FileNotFoundError):
            if entry.name.endswith(".mp4"):
                stat = entry.stat(follow_symlinks=False)
                found.append((stat.st_mtime, stat.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if total <= most_bytes or used > now - SAFE_S:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            removed += 1
        total -= size
    return removed


@functools.cache
def _codec() -> str:
    """The first of `CODECS` that can be had."""
    import av

    for name in CODECS:
        with contextlib.suppress(av.codec.codec.UnknownCodecError):
            av.Codec(name, "w")
            return name
    raise RuntimeError(f"this build of PyAV encodes none of {', '.join(CODECS)}: install av from its wheels")

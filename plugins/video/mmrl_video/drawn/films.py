"""Clips as files: encoded once, cached in a folder of bounded size that all runs share."""

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
"""Maximal size of the folder: beyond it the least recently used files are removed."""
SAFE_S = 3600.0
"""Files used within this many seconds are not removed, because a process may be about to read them."""
LOOK_EVERY = 64
"""Number of files that a process writes between checks of the folder's size."""
CODECS = {"libx264": {"crf": "6", "preset": "veryfast"}, "mpeg4": {"qscale:v": "1", "q:v": "1"}}
"""Name -> options that preserve colours; the first available one is used."""

_written = 0


def file_of(story: Story) -> str:
    """The path of the clip, which is painted and encoded if it isn't cached."""
    global _written
    codec = _codec()
    path = folder() / f"{story.digest()}-{codec}.mp4"
    try:
        os.utime(path)
        there = path.stat().st_size > 0  # a crashed machine may leave an empty file
    except FileNotFoundError:
        there = False
    if not there:
        encode(paint(story), story.rate, path)
        _written += 1
        if _written % LOOK_EVERY == 0:
            clear(path.parent, KEEP_BYTES)
    return str(path)


def encode(frames_THWC: np.ndarray, rate: int, path: Path) -> None:
    """Writes an mp4 of `rate` frames a second, uint8 [T, H, W, 3] with even H and W. The file appears complete or not at all."""
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
    """The folder of clips: `mmrl/clips` in the user's cache folder, or, if that isn't writable, a temporary folder of this
    process."""
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
    """Removes the least recently used clips until the folder has at most `most_bytes`, except those of the last `SAFE_S` seconds.
    Returns the number of removed ones. Several processes may do so at once."""
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
    """The first available one of `CODECS`."""
    import av

    for name in CODECS:
        with contextlib.suppress(av.codec.codec.UnknownCodecError):
            av.Codec(name, "w")
            return name
    raise RuntimeError(f"this build of PyAV encodes none of {', '.join(CODECS)}: install av from its wheels")

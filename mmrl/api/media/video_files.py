"""Open video files safely with PyAV, and read their facts without decoding frames.

Video files are untrusted input: only containers that hold their own frames are opened, none that refer to other files; the length
and frame rate come from counting packets, not from the file's header; and every error becomes one line that names the file.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, check_path, display_path, shorten

FORMATS = (
    "mov",
    "mp4",
    "m4a",
    "3gp",
    "3g2",
    "mj2",
    "matroska",
    "webm",
    "avi",
    "mpegts",
    "mpeg",
    "flv",
    "asf",
    "ogg",
    "gif",
    "m4v",
)
"""Containers that are opened. Not playlists and lists of files, which load other files."""
MAX_BYTES = 2**32
"""Largest file, 4 GiB."""
MAX_PACKETS = 2_000_000
"""Largest number of frames in a file, more than eighteen hours at 30 a second."""
MAX_FRAME_PIXELS = 2**24
"""Largest width times height of a file's frames: decoders keep up to 16 of them."""
MAX_SECONDS = 60.0
"""Most processor time that decoding one clip may take, in seconds: hours of video, of which a few frames are shown."""
MAX_RATE = 1000
"""Largest average number of frames per second in a file."""
SHORT_S, SHORT_SHARE = 1.0, 0.1
"""A file is truncated if its frames end more than SHORT_S seconds, and more than SHORT_SHARE of the duration in its header, too
early..."""
ABSURD = 1000
"""... unless the duration in the header is at least ABSURD times as long, which means that the header is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoInfo:
    """Facts from the packets of a file, without decoding frames."""

    times_s: tuple[float, ...]
    """Time of each frame in seconds, increasing from 0."""
    duration_s: float
    """Seconds until the last frame ends."""
    size: tuple[int, int]
    """(width, height) in pixels, before rotation."""

    @property
    def frames(self) -> int:
        return len(self.times_s)

    @property
    def fps(self) -> float:
        """Average number of frames per second."""
        return self.frames / self.duration_s


def probe(path: str | Path) -> VideoInfo:
    """Read the facts of a video file. Raises UserError if it can't be read or has no frames."""
    with open_video(str(path)) as (container, stream):
        return read_info(str(path), container, stream, deadline_from_now())


@contextmanager
def open_video(path: str) -> Iterator[tuple[Any, Any]]:
    """(container of PyAV, its video stream) of a file; a frame that is damaged or larger than `MAX_FRAME_PIXELS` is an error when
    it is decoded. Errors of PyAV inside the block become UserError, which names the file."""
    try:
        import av
    except ModuleNotFoundError:
        raise UserError('videos need av: pip install "multimodal-rl[train]"') from None

    options = {"format_whitelist": ",".join(FORMATS), "max_pixels": str(MAX_FRAME_PIXELS)}

    if "://" in path:
        raise UserError(f"video {path} is a URL: download it first, nothing is fetched while training")
    where = Path(path)
    try:
        there = where.exists()
    except (OSError, ValueError) as error:  # such as a name that is too long
        raise UserError(f"video {path!r:.80} can't be looked up: {shorten(error, 60)}: check the path") from error
    if not there:
        raise UserError(f"video {display_path(path)} does not exist: {check_path(path)}")
    if not where.is_file():
        raise UserError(f"video {path} is no file: give the path of one video, or the rate of a folder of pictures")
    if not (size := where.stat().st_size):
        raise UserError(f"video {path} is empty, 0 bytes: download it again, or leave it out")
    if size > MAX_BYTES:
        raise UserError(f"video {path} is too large, {size:,} bytes: at most {MAX_BYTES:,}")
    try:
        with open(path, "rb") as file, av.open(file, options=options) as container:
            stream: Any = container.streams.best("video")
            if stream is None or stream.disposition & av.stream.Disposition.attached_pic:  # the cover of a sound file
                raise UserError(
                    f"video {path} holds no pictures{', only sound' if container.streams.audio else ''}: leave it out"
                )
            if stream.codec_context is None:
                raise UserError(f"video {path} is broken, or coded in a way that can't be read: encode it again as H.264")
            width, height = stream.codec_context.width, stream.codec_context.height
            if width * height > MAX_FRAME_PIXELS:
                raise UserError(f"video {path} is too large, {width} x {height}: at most {MAX_FRAME_PIXELS:,} pixels a frame")
            stream.codec_context.options = {"err_detect": "explode", "max_pixels": str(MAX_FRAME_PIXELS)}
            yield container, stream
    except UserError:
        raise
    except PermissionError:
        raise UserError(f"video {path} can't be read: check its permissions") from None
    except (av.FFmpegError, OSError, ValueError, OverflowError, MemoryError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise UserError(
            f"video {path} is broken or of an unknown kind ({why}): replace it by an MP4, WebM or MKV file"
        ) from error


def deadline_from_now() -> float:
    """The thread's time, as of `time.thread_time`, at which to give up a clip that is decoded from now on."""
    return time.thread_time() + MAX_SECONDS


def check_time(path: str, end: float) -> None:
    """Raise UserError if the thread's time is after `end`, a time of `deadline_from_now`."""
    if time.thread_time() > end:
        raise UserError(f"video {path} takes more than {MAX_SECONDS:g} s to decode: cut it, or encode it with fewer frames")


def read_info(path: str, container: Any, stream: Any, end: float) -> VideoInfo:
    """The facts of an open file. end: a time of `deadline_from_now`.

    Frames that no player shows are left out: those that an edit list hides, as in a file that was cut without encoding it again,
    and those before the first key frame, which can't be decoded.
    """
    pts: list[int] = []
    hidden: set[int] = set()
    first: int | None = None
    last = 0
    for packet in container.demux(stream):
        check_time(path, end)
        if packet.pts is None or packet.size == 0:
            continue
        pts.append(packet.pts)
        if packet.is_discard:
            hidden.add(packet.pts)
        if first is None and packet.is_keyframe:
            first = packet.pts
        last = packet.duration or last
        if len(pts) > MAX_PACKETS:
            raise UserError(f"video {path} has more than {MAX_PACKETS:,} frames: cut it")
    if not pts:
        raise UserError(f"video {path} holds no pictures, it has length zero: leave it out")
    base = stream.time_base or Fraction(1, 1000)
    whole = float((max(pts) - min(pts)) * base)
    pts = sorted(p for p in pts if p not in hidden and (first is None or p >= first)) or sorted(pts)
    gaps = sorted(b - a for a, b in itertools.pairwise(pts))
    rest = gaps[len(gaps) // 2] if gaps else last  # the last frame's own duration is unreliable in many containers
    duration = float((pts[-1] - pts[0] + max(rest, 0)) * base)
    times = tuple(float((p - pts[0]) * base) for p in pts)
    named = _named(container, stream)
    whole = max(whole, duration)
    if named - whole > max(SHORT_S, SHORT_SHARE * named) and named < ABSURD * max(whole, 1.0):
        raise UserError(f"video {path} was cut off: it ends after {whole:.1f} of {named:.1f} s: download it again")
    if len(pts) > 1 and len(pts) > MAX_RATE * duration:
        raise UserError(f"video {path} has impossible times, {len(pts):,} frames in {duration:.2g} s: encode it again")
    size = (stream.codec_context.width, stream.codec_context.height)
    return VideoInfo(times_s=times, duration_s=duration or 1 / 30, size=size)


def _named(container: Any, stream: Any) -> float:
    """The duration in the file's header in seconds; 0 without one."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / 1e6 if container.duration and len(container.streams) == 1 else 0.0

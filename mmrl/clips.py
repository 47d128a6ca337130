"""Videos, safely decoded: which moments of a file are shown, as pictures with their times.

A video file is hostile input until it is decoded: only containers that hold their own pictures are opened, none that name other
files; what a file says of its length and rate is not believed, its packets are counted; and whatever goes wrong becomes one line
that names the file. PyAV decodes.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
import random
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.errors import UserError
from mmrl.media import MAX_PIXELS, MAX_RATIO

if TYPE_CHECKING:
    import numpy as np

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
"""Containers that are opened. Not playlists and lists of files, which pull in others."""
MAX_BYTES = 2**32
"""Of a file, 4 GiB."""
MAX_PACKETS = 2_000_000
"""Frames of a file, more than eighteen hours at 30 a second."""
MAX_SHOWN = 4096
"""Frames that are shown of one."""
MAX_DECODED = 2**31
"""Bytes of the frames that are shown together, decoded."""
KEPT_BYTES = 2**28
"""Of decoded frames that are kept for who asks again, 256 MB."""
SHORT_S, SHORT_SHARE = 1.0, 0.1
"""A file whose pictures end so much, and such a share, before the end that it names was cut off..."""
ABSURD = 1000
"""... unless it names an end so many times further, which is no end at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Which moments of a video are shown. It is decoded when it is read, and by whoever reads it the same.

    At most one of `fps`, `count` and `indices` is given; with none, the policy's own rate counts.
    """

    path: str
    """Of the file."""
    fps: float | None = None
    """Frames a second that are shown."""
    count: int | None = None
    """Or so many, evenly from the first to the last; all, where there are fewer."""
    indices: tuple[int, ...] = ()
    """Or these, counted from 0 in the whole file; each may be shown twice, in any order."""
    start_s: float = 0.0
    """Where it begins, in seconds of the file."""
    end_s: float | None = None
    """Where it ends; by default with the file. Beyond that it is an error."""
    order: tuple[int, ...] = ()
    """In which order the frames are shown, a permutation of their numbers from 0; the times stay where they are."""
    shuffled: int | None = None
    """Or in one that is drawn from this seed, never the one in which they come."""

    def __post_init__(self) -> None:
        given = [name for name in ("fps", "count", "indices") if getattr(self, name) not in (None, ())]
        if len(given) > 1:
            raise UserError(f"video {self.path}: {' and '.join(given)} are both given: choose one")
        if self.fps is not None and not 0 < self.fps <= 1000:
            raise UserError(f"video {self.path}: fps = {self.fps!r} must be a number above 0, at most 1000")
        if self.count is not None and not 1 <= self.count <= MAX_SHOWN:
            raise UserError(f"video {self.path}: count = {self.count!r} must be 1 to {MAX_SHOWN}")
        if not 0 <= self.start_s < math.inf or (self.end_s is not None and not self.start_s < self.end_s < math.inf):
            raise UserError(
                f"video {self.path}: from {self.start_s!r} to {self.end_s!r} s is no part of it: 0 <= start_s < end_s"
            )
        if self.order and self.shuffled is not None:
            raise UserError(f"video {self.path}: order and shuffled are both given: choose one")
        if self.order and sorted(self.order) != list(range(len(self.order))):
            raise UserError(f"video {self.path}: order = {self.order!r:.80} is no permutation of the numbers from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footage:
    """Frames and when they are seen: a clip that was decoded, or one that a task made."""

    frames_THWC: np.ndarray
    """uint8 [T, H, W, 3], RGB, upright."""
    times_s: tuple[float, ...]
    """T seconds from the clip's beginning, rising."""
    duration_s: float
    """Of the clip; after the last of `times_s`."""
    indices: tuple[int, ...] = ()
    """T numbers of the frames in their file; empty where there is none."""
    name: str = ""
    """Of the file, for errors."""

    @property
    def rate(self) -> float:
        """Frames a second that are shown."""
        return len(self.times_s) / self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the packets of a file tell, its pictures not decoded."""

    times_s: tuple[float, ...]
    """When each frame is seen, from the first one's 0, rising."""
    duration_s: float
    """Until the last frame ends."""
    size: tuple[int, int]
    """(width, height) in pixels, before it is turned upright."""

    @property
    def frames(self) -> int:
        return len(self.times_s)

    @property
    def fps(self) -> float:
        """Frames a second, on average."""
        return self.frames / self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a video is looked at."""

    fps: float = 2.0
    """Frames a second of a clip that doesn't say."""
    max_frames: int = 64
    """Of one clip; of a longer one the same number is shown evenly."""
    factor: int = 1
    """Width and height become multiples of it."""
    min_pixels: int = 1
    """Width times height of a frame; smaller ones are enlarged."""
    max_pixels: int = MAX_PIXELS
    """Larger ones are shrunk."""
    total_pixels: int = MAX_DECODED // 3
    """Of all frames together; with many frames each has less."""

    def size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """(width, height) in which so many frames of this size are shown: the nearest multiples of `factor` that keep the ratio
        and the limits, as the image processors of Qwen-VL have it."""
        if max(width, height) > MAX_RATIO * min(width, height):
            raise UserError(f"its frames of {width} x {height} are too narrow: crop or pad them")
        most, factor = max(min(self.max_pixels, self.total_pixels // frames), self.factor**2), self.factor
        w, h = (max(factor, round(side / factor) * factor) for side in (width, height))
        if w * h > most:
            scale = math.sqrt(width * height / most)
            w, h = (max(factor, math.floor(side / scale / factor) * factor) for side in (width, height))
        elif w * h < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            w, h = (math.ceil(side * scale / factor) * factor for side in (width, height))
        return w, h


NATIVE = Limits()
"""Frames as they are in the file."""
GLIMPSE = Limits(max_pixels=2**16)
"""For people."""
GREY = 128


def probe(path: str | Path) -> Facts:
    """What a file holds. Raises UserError where it can't be read, or holds no pictures."""
    with _opened(str(path)) as (container, stream):
        return _facts(str(path), container, stream)


def frames_of(clip: Clip | Footage, limits: Limits = NATIVE) -> Footage:
    """The frames that are shown. What was decoded lately is kept, `KEPT_BYTES` of it.

    Raises UserError, which names the file, where it is missing, broken anywhere before the last frame that is shown, cut off, too
    large, or of a kind that is not opened; and where the clip asks for what isn't there.
    """
    if isinstance(clip, Footage):
        return _resized(clip, limits)
    key = (clip, limits, _stamp(clip.path))
    with _LOCK:
        if key in _KEPT:
            _KEPT.move_to_end(key)
            return _KEPT[key]
    found = _decoded(clip, limits)
    with _LOCK:
        _KEPT[key] = found
        while sum(f.frames_THWC.nbytes for f in _KEPT.values()) > KEPT_BYTES and len(_KEPT) > 1:
            _KEPT.popitem(last=False)
    return found


def glimpse(clip: Clip | Footage) -> Footage:
    """What is seen of a clip by somebody, for people to look at: as it was decoded last, or small."""
    if isinstance(clip, Clip):
        with _LOCK:
            known = [found for (one, _, stamp), found in _KEPT.items() if one == clip and stamp == _stamp(clip.path)]
        if known:
            return known[-1]
    return frames_of(clip, GLIMPSE)


def shuffled(clip: Clip | Footage, seed: int) -> Clip | Footage:
    """The same frames in an order that is drawn from the seed; the times stay where they are."""
    if isinstance(clip, Clip):
        return replace(clip, order=(), shuffled=seed)
    return replace(clip, frames_THWC=clip.frames_THWC[list(permutation(len(clip.frames_THWC), seed))])


def permutation(count: int, seed: int) -> tuple[int, ...]:
    """Of so many numbers from 0, drawn from the seed; where there are two or more, not the one that leaves them as they are."""
    draw = random.Random(seed)
    found = straight = list(range(count))
    while found == straight and count > 1:
        found = draw.sample(straight, count)
    return tuple(found)


def blanked(clip: Clip | Footage) -> Footage:
    """The same frames and times, all grey."""
    import numpy as np

    found = frames_of(clip)
    return replace(found, frames_THWC=np.full_like(found.frames_THWC, GREY))


class Count:
    """Files that were decoded by this process so far."""

    files = 0


_KEPT: OrderedDict[Any, Footage] = OrderedDict()
_LOCK = threading.Lock()


def forget() -> None:
    """Nothing that was decoded is kept."""
    with _LOCK:
        _KEPT.clear()


def _stamp(path: str) -> tuple[int, int]:
    """What changes when the file does."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)  # opening it says what is wrong
    return found.st_mtime_ns, found.st_size


@contextmanager
def _opened(path: str) -> Iterator[tuple[Any, Any]]:
    """(container, its stream of pictures); whatever goes wrong within is a UserError."""
    import av

    if "://" in path:
        raise UserError(f"video {path} is a URL: download it first, nothing is fetched while training")
    where = Path(path)
    if not where.exists():
        raise UserError(f"video {path} does not exist: check the path")
    if not where.is_file():
        raise UserError(f"video {path} is no file: give the path of one video")
    if where.stat().st_size > MAX_BYTES:
        raise UserError(f"video {path} is too large, {where.stat().st_size:,} bytes: at most {MAX_BYTES:,}")
    try:
        with open(path, "rb") as file, av.open(file, options={"format_whitelist": ",".join(FORMATS)}) as container:
            if not container.streams.video:
                raise UserError(
                    f"video {path} holds no pictures{', only sound' if container.streams.audio else ''}: leave it out"
                )
            stream = container.streams.video[0]
            width, height = stream.codec_context.width, stream.codec_context.height
            if width * height > MAX_PIXELS:
                raise UserError(f"video {path} is too large, {width} x {height}: shrink it to at most {MAX_PIXELS:,} pixels")
            stream.codec_context.options = {"err_detect": "explode"}
            yield container, stream
    except UserError:
        raise
    except PermissionError:
        raise UserError(f"video {path} can't be read: check its permissions") from None
    except (av.FFmpegError, OSError, ValueError, OverflowError, MemoryError) as error:
        why = str(error).partition("]")[2].partition(":")[0].strip() or type(error).__name__
        raise UserError(
            f"video {path} is broken or of an unknown kind ({why}): replace it by an MP4, WebM or MKV file"
        ) from error


def _facts(path: str, container: Any, stream: Any) -> Facts:
    pts: list[int] = []
    last = 0
    for packet in container.demux(stream):
        if packet.pts is None or packet.size == 0:
            continue
        pts.append(packet.pts)
        last = packet.duration or last
        if len(pts) > MAX_PACKETS:
            raise UserError(f"video {path} has more than {MAX_PACKETS:,} frames: cut it")
    if not pts:
        raise UserError(f"video {path} holds no pictures, it has length zero: leave it out")
    pts.sort()
    base = stream.time_base or Fraction(1, 1000)
    gaps = sorted(b - a for a, b in itertools.pairwise(pts))
    rest = gaps[len(gaps) // 2] if gaps else last  # of what containers say of the last frame's length, little is true
    duration = float((pts[-1] - pts[0] + max(rest, 0)) * base)
    times = tuple(float((p - pts[0]) * base) for p in pts)
    named = _named(container, stream)
    if named - duration > max(SHORT_S, SHORT_SHARE * named) and named < ABSURD * max(duration, 1.0):
        raise UserError(f"video {path} was cut off: it ends after {duration:.1f} of {named:.1f} s: get it again")
    size = (stream.codec_context.width, stream.codec_context.height)
    return Facts(times_s=times, duration_s=duration or 1 / 30, size=size)


def _named(container: Any, stream: Any) -> float:
    """The seconds that the file says its pictures last; 0 where it doesn't."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / 1e6 if container.duration and len(container.streams) == 1 else 0.0


def chosen(clip: Clip, facts: Facts, limits: Limits) -> tuple[int, ...]:
    """The numbers of the frames that a clip shows. Raises UserError where it asks for what isn't there."""
    if clip.indices:
        beyond = [i for i in clip.indices if not 0 <= i < facts.frames]
        if beyond:
            raise UserError(f"video {clip.path} has {facts.frames} frames: there is no frame {beyond[0]}")
        return clip.indices
    end = facts.duration_s if clip.end_s is None else clip.end_s
    if clip.start_s >= facts.duration_s or end > facts.duration_s + SHORT_S:
        raise UserError(f"video {clip.path} has {facts.duration_s:.2f} s: there is no part from {clip.start_s:g} to {end:g} s")
    first = max(0, bisect.bisect_right(facts.times_s, clip.start_s + 1e-6) - 1)
    last = max(first, bisect.bisect_left(facts.times_s, end - 1e-6) - 1)
    rate = clip.fps or limits.fps
    wanted = clip.count or max(1, round((min(end, facts.duration_s) - clip.start_s) * rate))
    wanted = min(wanted, limits.max_frames, last - first + 1)
    return tuple(_nearest(facts.times_s, t) for t in _evenly(facts.times_s[first], facts.times_s[last], wanted))


def _evenly(first: float, last: float, count: int) -> list[float]:
    return [first + (last - first) * k / (count - 1) for k in range(count)] if count > 1 else [(first + last) / 2]


def _nearest(times: Sequence[float], t: float) -> int:
    after = bisect.bisect_left(times, t)
    if after == 0 or (after < len(times) and times[after] - t < t - times[after - 1]):
        return after
    return after - 1


def _decoded(clip: Clip, limits: Limits) -> Footage:
    import numpy as np

    with _opened(clip.path) as (container, stream):
        facts = _facts(clip.path, container, stream)
        indices = chosen(clip, facts, limits)
        if len(indices) > MAX_SHOWN:
            raise UserError(f"video {clip.path}: {len(indices)} frames are too many to show: at most {MAX_SHOWN}")
        if clip.order and len(clip.order) != len(indices):
            raise UserError(f"video {clip.path}: order has {len(clip.order)} numbers, and {len(indices)} frames are shown")
        Count.files += 1
        pictures = _pictures(clip.path, container, stream, facts, indices, limits)
        frames = np.stack([pictures[i] for i in indices])
    order = clip.order if clip.shuffled is None else permutation(len(frames), clip.shuffled)
    shown = frames[list(order)] if order else frames
    shown.flags.writeable = False
    end = min(facts.duration_s if clip.end_s is None else clip.end_s, facts.duration_s)
    return Footage(
        frames_THWC=shown,
        times_s=tuple(max(0.0, facts.times_s[i] - clip.start_s) for i in indices),
        duration_s=end - clip.start_s if not clip.indices else facts.duration_s,
        indices=indices,
        name=clip.path,
    )


def _pictures(
    path: str, container: Any, stream: Any, facts: Facts, indices: Sequence[int], limits: Limits
) -> dict[int, np.ndarray]:
    """The frames with these numbers, by number."""
    wanted = set(indices)
    found: dict[int, np.ndarray] = {}
    first = stream.start_time
    container.seek(0 if first is None else first, stream=stream)
    base = stream.time_base or Fraction(1, 1000)
    begun: int | None = None
    for frame in container.decode(stream):
        if frame.is_corrupt:
            raise UserError(f"video {path} is broken after {len(found)} of its frames: replace it")
        if frame.pts is None:
            continue
        begun = frame.pts if begun is None else begun
        number = _nearest(facts.times_s, float((frame.pts - begun) * base))
        if number in wanted and number not in found:
            found[number] = _picture(frame, limits, len(indices))
            if len(found) * found[number].nbytes > MAX_DECODED:
                raise UserError(
                    f"video {path}: {len(indices)} frames of its size are too much memory: show fewer or smaller ones"
                )
            if len(found) == len(wanted):
                break
    if missing := sorted(wanted - found.keys()):
        raise UserError(f"video {path} is broken: frame {missing[0]} of {facts.frames} can't be decoded: replace it")
    return found


def _picture(frame: Any, limits: Limits, frames: int) -> np.ndarray:
    """RGB, upright, in the size that is looked at."""
    import numpy as np

    turns = round(frame.rotation / 90) % 4
    width, height = limits.size(*((frame.height, frame.width) if turns % 2 else (frame.width, frame.height)), frames)
    if turns % 2:
        width, height = height, width
    made: np.ndarray = frame.to_ndarray(format="rgb24", width=width, height=height, interpolation="BICUBIC")
    return np.ascontiguousarray(np.rot90(made, turns))


def _resized(footage: Footage, limits: Limits) -> Footage:
    """As it is, in the size and number that is looked at."""
    import av
    import numpy as np

    frames = footage.frames_THWC
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise UserError(f"video {footage.name}: its frames are {frames.dtype} {list(frames.shape)}, not uint8 [T, H, W, 3]")
    if len(frames) != len(footage.times_s):
        raise UserError(f"video {footage.name}: it has {len(frames)} frames and {len(footage.times_s)} times")
    kept = range(len(frames))
    if len(frames) > limits.max_frames:
        kept = [round(k) for k in _evenly(0, len(frames) - 1, limits.max_frames)]  # type: ignore[assignment]
    height, width = frames.shape[1:3]
    size = limits.size(width, height, len(kept))
    if size == (width, height) and len(kept) == len(frames):
        return footage
    scaled = [
        av.VideoFrame.from_ndarray(np.ascontiguousarray(frames[i]), format="rgb24").to_ndarray(
            format="rgb24", width=size[0], height=size[1], interpolation="BICUBIC"
        )
        for i in kept
    ]
    return Footage(
        frames_THWC=np.stack(scaled),
        times_s=tuple(footage.times_s[i] for i in kept),
        duration_s=footage.duration_s,
        indices=tuple(footage.indices[i] for i in kept) if footage.indices else (),
        name=footage.name,
    )

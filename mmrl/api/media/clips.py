"""Videos: which frames of a file are shown, and when. `mmrl.api.media.decoding` decodes them."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError
from mmrl.api.media.image_limits import MAX_PIXELS
from mmrl.api.media.images import MAX_RATIO

if TYPE_CHECKING:
    import numpy as np

MAX_SHOWN = 4096
"""Largest number of frames that are shown of one video."""
SLOWEST, FASTEST = 1e-6, 1000
"""Frames per second at least and at most."""
MAX_DECODED = 2**29
"""Largest size of the decoded frames of one video, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A selection of frames of a video file, or of a folder of pictures. It is decoded on use, and always gives the same frames.

    At most one of `fps`, `count` and `indices` is given; without any, the policy's own frame rate is used.
    """

    path: str
    """Path of the file; with `rate`, of a folder of pictures."""
    fps: float | None = None
    """Frames per second that are shown, from the beginning; if the policy's limit is lower, that many frames, evenly spaced."""
    count: int | None = None
    """Number of frames, evenly spaced from the first to the last; all frames if there are fewer."""
    indices: tuple[int, ...] = ()
    """Indices of the frames in the whole file, from 0, in any order; an index may be repeated."""
    start_s: float = 0.0
    """Start of the clip, in seconds of the file."""
    end_s: float | None = None
    """End of the clip, in seconds of the file; by default the end of the file. A later end is an error."""
    order: tuple[int, ...] = ()
    """Order in which the frames are shown, a permutation of their indices from 0; the times don't change."""
    shuffled: int | None = None
    """Seed of a random order, which is never the original one."""
    blank: bool = False
    """Show every frame as grey."""
    rate: float | None = None
    """Pictures per second of a folder of pictures, see `mmrl.api.media.picture_folders`; None for a video file."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise UserError(f"video {self.path!r:.60}: path must be a text, the path of a file")
        for name in ("fps", "count", "start_s", "end_s", "shuffled", "rate"):
            value, whole = getattr(self, name), name in ("count", "shuffled")
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral if whole else Real)):
                raise UserError(f"video {self.path}: {name} = {value!r:.60} must be a {'whole ' if whole else ''}number")
        if not all(isinstance(i, Integral) for i in self.indices):
            raise UserError(f"video {self.path}: indices = {self.indices!r:.60} must be whole numbers")
        given = [name for name in ("fps", "count", "indices") if getattr(self, name) not in (None, ())]
        if len(given) > 1:
            raise UserError(f"video {self.path}: {' and '.join(given)} are both given: choose one")
        for name in ("fps", "rate"):
            if (value := getattr(self, name)) is not None and not SLOWEST <= value <= FASTEST:
                raise UserError(f"video {self.path}: {name} = {value!r:.60} must be a number from {SLOWEST:g} to {FASTEST}")
        if self.count is not None and not 1 <= self.count <= MAX_SHOWN:
            raise UserError(f"video {self.path}: count = {self.count!r} must be 1 to {MAX_SHOWN}")
        if not 0 <= self.start_s < math.inf or (self.end_s is not None and not self.start_s < self.end_s < math.inf):
            raise UserError(
                f"video {self.path}: start_s = {self.start_s!r}, end_s = {self.end_s!r}: give 0 <= start_s < end_s, in seconds"
            )
        if self.order and self.shuffled is not None:
            raise UserError(f"video {self.path}: order and shuffled are both given: choose one")
        if self.order and sorted(self.order) != list(range(len(self.order))):
            raise UserError(f"video {self.path}: order = {self.order!r:.80} is no permutation of the numbers from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFrames:
    """Frames with their times: a decoded clip, or frames that a task made."""

    frames_THWC: np.ndarray
    """uint8 [T, H, W, 3], RGB, upright."""
    times_s: tuple[float, ...]
    """Time of each of the T frames, in seconds from the clip's beginning, increasing."""
    duration_s: float
    """Duration of the clip in seconds; later than the last of `times_s`."""
    indices: tuple[int, ...] = ()
    """Index of each of the T frames in its file; empty without a file."""
    name: str = ""
    """Name of the file, for error messages."""

    @property
    def rate(self) -> float:
        """Frames per second."""
        return len(self.times_s) / self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoLimits:
    """Limits on the number and size of a video's frames."""

    fps: float = 2.0
    """Frames per second, for a clip without its own rate."""
    max_frames: int = 128
    """Largest number of frames; of a longer clip this many are shown, evenly spaced."""
    factor: int = 1
    """Width and height are rounded to multiples of this."""
    min_pixels: int = 1
    """Width times height of a frame; smaller frames are enlarged."""
    max_pixels: int = MAX_PIXELS
    """Width times height of a frame; larger frames are shrunk."""
    total_pixels: int = MAX_DECODED // 3
    """Pixels of all frames together; if there are many frames, each is smaller."""

    def size(self, width: int, height: int, frames: int, name: str = "") -> tuple[int, int]:
        """(width, height) in which `frames` frames of this size are shown: the nearest multiples of `factor` that keep the aspect
        ratio and the limits, as in the image processors of Qwen-VL. name: of the video, for the message. Raises UserError for
        frames that are too narrow."""
        if max(width, height) > MAX_RATIO * min(width, height):
            raise UserError(f"video {name}: its frames of {width} x {height} are too narrow: crop or pad them")
        most, factor = max(min(self.max_pixels, self.total_pixels // frames), self.factor**2), self.factor
        w, h = (max(factor, round(side / factor) * factor) for side in (width, height))
        if w * h > most:
            scale = math.sqrt(width * height / most)
            w, h = (max(factor, math.floor(side / scale / factor) * factor) for side in (width, height))
        elif w * h < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            w, h = (math.ceil(side * scale / factor) * factor for side in (width, height))
        return w, h


NATIVE = VideoLimits()
"""Limits that keep the frames' own size."""
GLIMPSE = VideoLimits(max_pixels=2**16)
"""Limits for frames that people look at."""
GREY = 128
"""Value of each channel of a blanked frame."""


def as_clip(video: Any) -> Clip | VideoFrames:
    """The video of a message as a `Clip` or `VideoFrames`; a path stands for the whole file. Raises UserError otherwise."""
    if isinstance(video, str | os.PathLike):
        return Clip(path=os.fspath(video))
    if not isinstance(video, Clip | VideoFrames):
        raise UserError(f"{video!r:.60} is no video: give a path, or a Clip or VideoFrames of mmrl.api.media.clips")
    return video


def shuffle_frames(clip: Clip | VideoFrames, seed: int) -> Clip | VideoFrames:
    """The same frames in a random order drawn from the seed; the times don't change."""
    clip = as_clip(clip)
    if isinstance(clip, Clip):
        return replace(clip, order=(), shuffled=seed)
    return replace(clip, frames_THWC=clip.frames_THWC[list(permutation(len(clip.frames_THWC), seed))])


def permutation(count: int, seed: int) -> tuple[int, ...]:
    """A random permutation of range(count), drawn from the seed; never the identity if there are two or more numbers."""
    draw = random.Random(seed)
    order = identity = list(range(count))
    while order == identity and count > 1:
        order = draw.sample(identity, count)
    return tuple(order)


def blank_frames(clip: Clip | VideoFrames) -> Clip | VideoFrames:
    """A video with the same times and sizes whose frames are all grey."""
    import numpy as np

    clip = as_clip(clip)
    if isinstance(clip, Clip):
        return replace(clip, blank=True)
    return replace(clip, frames_THWC=np.full_like(clip.frames_THWC, GREY))


def evenly_spaced(first: float, last: float, count: int) -> list[float]:
    """`count` evenly spaced numbers from the first to the last; a single one lies in the middle."""
    return [first + (last - first) * k / (count - 1) for k in range(count)] if count > 1 else [(first + last) / 2]

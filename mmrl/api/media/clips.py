"""Videos: which moments of a file are shown, as pictures with their times. `mmrl.api.media.decoding` reads the file."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError
from mmrl.api.media.images import MAX_PIXELS, MAX_RATIO

if TYPE_CHECKING:
    import numpy as np

MAX_SHOWN = 4096
"""Frames that are shown of one."""
MAX_DECODED = 2**31
"""Bytes of the frames that are shown together, decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Which moments of a video are shown. It is decoded when it is read, and by whoever reads it the same.

    At most one of `fps`, `count` and `indices` is given; with none, the policy's own rate counts.
    """

    path: str
    """Of the file."""
    fps: float | None = None
    """Frames a second that are shown, from the beginning on; where the policy sees fewer, as many as it sees, evenly."""
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
    blank: bool = False
    """Every frame is grey."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise UserError(f"video {self.path!r:.60}: path must be a text, the path of a file")
        for name in ("fps", "count", "start_s", "end_s", "shuffled"):
            value, whole = getattr(self, name), name in ("count", "shuffled")
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral if whole else Real)):
                raise UserError(f"video {self.path}: {name} = {value!r:.60} must be a {'whole ' if whole else ''}number")
        if not all(isinstance(i, Integral) for i in self.indices):
            raise UserError(f"video {self.path}: indices = {self.indices!r:.60} must be whole numbers")
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
class VideoFrames:
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
class VideoLimits:
    """How much of a video is looked at."""

    fps: float = 2.0
    """Frames a second of a clip that doesn't say."""
    max_frames: int = 128
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


NATIVE = VideoLimits()
"""Frames as they are in the file."""
GLIMPSE = VideoLimits(max_pixels=2**16)
"""For people."""
GREY = 128
"""Of a blanked frame."""


def as_clip(video: Any) -> Clip | VideoFrames:
    """What stands for a video in a message: itself, or the whole file that a path names. UserError for anything else."""
    if isinstance(video, str | os.PathLike):
        return Clip(path=os.fspath(video))
    if not isinstance(video, Clip | VideoFrames):
        raise UserError(f"{video!r:.60} is no video: give a path, mmrl.api.media.clips.Clip or Footage")
    return video


def shuffle_frames(clip: Clip | VideoFrames, seed: int) -> Clip | VideoFrames:
    """The same frames in an order that is drawn from the seed; the times stay where they are."""
    clip = as_clip(clip)
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


def blank_frames(clip: Clip | VideoFrames) -> Clip | VideoFrames:
    """The same frames and times, all grey."""
    import numpy as np

    clip = as_clip(clip)
    if isinstance(clip, Clip):
        return replace(clip, blank=True)
    return replace(clip, frames_THWC=np.full_like(clip.frames_THWC, GREY))


def evenly_spaced(first: float, last: float, count: int) -> list[float]:
    """So many numbers from the first to the last; one alone lies in the middle."""
    return [first + (last - first) * k / (count - 1) for k in range(count)] if count > 1 else [(first + last) / 2]

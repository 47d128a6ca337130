"""Decode the frames that a clip shows, and cache them. `mmrl.api.media.video_files` opens the file."""

from __future__ import annotations

import bisect
import math
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError
from mmrl.api.media.clips import (
    GLIMPSE,
    GREY,
    MAX_DECODED,
    MAX_SHOWN,
    NATIVE,
    Clip,
    VideoFrames,
    VideoLimits,
    as_clip,
    evenly_spaced,
    permutation,
)
from mmrl.api.media.images import load_image
from mmrl.api.media.picture_folders import folder_info, picture_files
from mmrl.api.media.video_files import SHORT_S, VideoInfo, check_time, deadline_from_now, open_video, read_info

if TYPE_CHECKING:
    import numpy as np


def frame_indices(clip: Clip, facts: VideoInfo, limits: VideoLimits) -> tuple[int, ...]:
    """Indices of the frames that a clip shows. Raises UserError if the clip names frames or times that the file doesn't have."""
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
    most = min(limits.max_frames, last - first + 1)
    if clip.count is None:  # a frame every 1 / rate seconds
        rate = clip.fps or limits.fps
        wanted = max(1, math.ceil((min(end, facts.duration_s) - clip.start_s) * rate - 1e-6))
        if wanted <= most:
            # the nearest frame may lie behind the clip's end
            return tuple(min(last, _nearest(facts.times_s, clip.start_s + k / rate)) for k in range(wanted))
    return tuple(
        _nearest(facts.times_s, t)
        for t in evenly_spaced(facts.times_s[first], facts.times_s[last], min(clip.count or most, most))
    )


def _nearest(times: Sequence[float], t: float) -> int:
    after = bisect.bisect_left(times, t)
    if after == 0 or (after < len(times) and times[after] - t < t - times[after - 1]):
        return after
    return after - 1


def decode(clip: Clip, limits: VideoLimits) -> VideoFrames:
    """Decode the frames of a clip from its file or folder, without the cache; see `cached_frames`."""
    deadline = deadline_from_now()
    if clip.rate is not None:
        facts = folder_info(clip.path, clip.rate)
    else:
        with open_video(clip.path) as (container, stream):
            facts = read_info(clip.path, container, stream, deadline)
    indices = frame_indices(clip, facts, limits)
    if len(indices) > MAX_SHOWN:
        raise UserError(f"video {clip.path}: {len(indices)} frames are too many to show: at most {MAX_SHOWN}")
    if clip.order and len(clip.order) != len(indices):
        raise UserError(f"video {clip.path}: order has {len(clip.order)} numbers, and {len(indices)} frames are shown")
    order = clip.order if clip.shuffled is None else permutation(len(indices), clip.shuffled)
    places = [indices[i] for i in order] if order else indices
    Count.files += 1
    if clip.rate is not None:
        shown = _of_folder(clip.path, facts, places, limits, deadline)
    else:
        with open_video(clip.path) as (container, stream):  # anew: not every container, such as MPEG-TS, can be rewound exactly
            shown = _pictures(clip.path, container, stream, facts, places, limits, deadline)
    if clip.blank:
        shown.fill(GREY)
    shown.flags.writeable = False
    end = min(facts.duration_s if clip.end_s is None else clip.end_s, facts.duration_s)
    return VideoFrames(
        frames_THWC=shown,
        times_s=tuple(max(0.0, facts.times_s[i] - clip.start_s) for i in indices),
        duration_s=end - clip.start_s if not clip.indices else facts.duration_s,
        indices=indices,
        name=clip.path,
    )


def _pictures(
    path: str, container: Any, stream: Any, facts: VideoInfo, indices: Sequence[int], limits: VideoLimits, deadline: float
) -> np.ndarray:
    """The frames with these indices, in this order: uint8 [T, H, W, 3]. deadline: the thread's time at which to give up."""
    places: dict[int, list[int]] = {}
    for place, index in enumerate(indices):
        places.setdefault(index, []).append(place)
    shown: np.ndarray | None = None
    base = stream.time_base or Fraction(1, 1000)
    begun: int | None = None
    scaler = Scaler()
    counted = container.format.name == "avi"  # it has no times of presentation; decoders give frames in their order
    for number, frame in enumerate(container.decode(stream)):
        check_time(path, deadline)
        if frame.is_corrupt:
            raise UserError(f"video {path} is broken before frame {min(places)} of {facts.frames}: replace it")
        if not counted:
            if frame.pts is None:
                continue
            begun = frame.pts if begun is None else begun
            number = _nearest(facts.times_s, float((frame.pts - begun) * base))
        if number in places:
            picture = _picture(path, scaler, frame, limits, len(indices))
            shown = _room(path, len(indices), picture) if shown is None else shown
            shown[places.pop(number)] = picture
            if not places:
                return shown
    raise UserError(f"video {path} is broken: frame {min(places)} of {facts.frames} can't be decoded: replace it")


def _of_folder(folder: str, facts: VideoInfo, indices: Sequence[int], limits: VideoLimits, deadline: float) -> np.ndarray:
    """The same from a folder of pictures."""
    import av
    import numpy as np

    files, scaler = picture_files(folder), Scaler()
    size = limits.size(*facts.size, len(indices), folder)
    shown: np.ndarray | None = None
    for place, index in enumerate(indices):
        check_time(folder, deadline)
        picture = load_image(files[index]).convert("RGB")
        if picture.size != facts.size:
            (w, h), (width, height) = picture.size, facts.size
            raise UserError(f"video {folder} has pictures of several sizes, {width} x {height} and {w} x {h}: make them equal")
        scaled = scaler(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24"), *size)
        shown = _room(folder, len(indices), scaled) if shown is None else shown
        shown[place] = scaled
    assert shown is not None, "a clip shows one frame at least"
    return shown


def _room(path: str, count: int, picture: np.ndarray) -> np.ndarray:
    """An array for so many frames of this size, uint8 [T, H, W, 3]. Raises UserError if they are too large."""
    import numpy as np

    if count * picture.nbytes > MAX_DECODED:
        raise UserError(f"video {path}: {count} frames of its size are too much memory: show fewer or smaller ones")
    return np.empty((count, *picture.shape), np.uint8)


class Scaler:
    """Scales frames and converts them to RGB. Use one per clip: setting it up takes longer than scaling a frame."""

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self._of = VideoReformatter()

    def __call__(self, frame: Any, width: int, height: int) -> np.ndarray:
        """frame: of PyAV; what is transparent becomes white. Returns uint8 [height, width, 3]. It uses one thread, since several
        clips are decoded in parallel."""
        clear = any(component.is_alpha for component in frame.format.components)
        kind = "rgba" if clear else "rgb24"
        scaled = self._of.reformat(frame, format=kind, width=width, height=height, interpolation="BICUBIC", threads=1)
        made: np.ndarray = scaled.to_ndarray()
        return _on_white(made) if clear else made


def _on_white(picture: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 4] -> [H, W, 3]"""
    import numpy as np

    alpha = picture[..., 3:].astype(np.uint16)
    mixed = (picture[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255
    return mixed.astype(np.uint8)


def _picture(path: str, scaler: Scaler, frame: Any, limits: VideoLimits, frames: int) -> np.ndarray:
    """The frame as upright RGB in the size that `limits` give."""
    import numpy as np

    turns, mirrored = _orientation(frame)
    width, height = limits.size(*((frame.height, frame.width) if turns % 2 else (frame.width, frame.height)), frames, path)
    if turns % 2:
        width, height = height, width
    picture = scaler(frame, width, height)
    return np.ascontiguousarray(np.rot90(picture[:, ::-1] if mirrored else picture, turns))


def _orientation(frame: Any) -> tuple[int, bool]:
    """(quarter turns counter-clockwise, whether left and right are exchanged before them) that put a frame upright."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return 0, False
    a, b, _, c, d = struct.unpack_from("=5i", matrix)
    mirrored = a * d - b * c < 0
    return round(frame.rotation / 90 + 2 * mirrored) % 4, mirrored


def cached_frames(clip: Clip | VideoFrames, limits: VideoLimits = NATIVE) -> VideoFrames:
    """The frames of a clip within the limits. Recently decoded frames are cached, up to `KEPT_BYTES`.

    Raises UserError, which names the file, if it is missing, broken anywhere before the last frame that is shown, truncated, too
    large, or of a format that is not in `FORMATS`; also if the clip names frames or times that the file doesn't have.
    """
    clip = as_clip(clip)
    if isinstance(clip, VideoFrames):
        return _resized(clip, limits)
    key = (clip, limits, _stamp(clip.path))
    with _LOCK:
        if key in _KEPT:
            _KEPT.move_to_end(key)
            return _KEPT[key]

    found = decode(clip, limits)
    with _LOCK:
        _KEPT[key] = found
        while sum(f.frames_THWC.nbytes for f in _KEPT.values()) > KEPT_BYTES and len(_KEPT) > 1:
            _KEPT.popitem(last=False)
    return found


def recent_frames(clip: Clip | VideoFrames) -> VideoFrames:
    """The frames of a clip for people: those in the cache, or small ones decoded now."""
    clip = as_clip(clip)
    if isinstance(clip, Clip):
        with _LOCK:
            known = [found for (one, _, stamp), found in _KEPT.items() if one == clip and stamp == _stamp(clip.path)]
        if known:
            return known[-1]
    return cached_frames(clip, GLIMPSE)


class Count:
    """Counter of decoded files."""

    files = 0
    """Files that this process has decoded so far."""


KEPT_BYTES = 2**28
"""Size of the cache of decoded frames, in bytes."""
_KEPT: OrderedDict[Any, VideoFrames] = OrderedDict()


_LOCK = threading.Lock()


def clear_cache() -> None:
    """Empty the cache of decoded frames."""
    with _LOCK:
        _KEPT.clear()


def _stamp(path: str) -> tuple[int, int]:
    """(modification time in ns, size in bytes) of the file, a part of its key in the cache."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError for a path with NUL
        return (0, 0)  # opening the file raises the error
    return status.st_mtime_ns, status.st_size


def _resized(footage: VideoFrames, limits: VideoLimits) -> VideoFrames:
    """The frames reduced to the number and size that the limits allow."""
    import av
    import numpy as np

    frames = footage.frames_THWC
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or not len(frames):
        raise UserError(f"video {footage.name}: its frames are {frames.dtype} {list(frames.shape)}, not uint8 [T, H, W, 3]")
    if len(frames) != len(footage.times_s):
        raise UserError(f"video {footage.name}: it has {len(frames)} frames and {len(footage.times_s)} times")
    kept = range(len(frames))
    if len(frames) > limits.max_frames:
        kept = [round(k) for k in evenly_spaced(0, len(frames) - 1, limits.max_frames)]  # type: ignore[assignment]
    height, width = frames.shape[1:3]
    size = limits.size(width, height, len(kept), footage.name)
    if size == (width, height) and len(kept) == len(frames):
        return footage
    scaler = Scaler()
    scaled = [scaler(av.VideoFrame.from_ndarray(np.ascontiguousarray(frames[i]), format="rgb24"), *size) for i in kept]
    return VideoFrames(
        frames_THWC=np.stack(scaled),
        times_s=tuple(footage.times_s[i] for i in kept),
        duration_s=footage.duration_s,
        indices=tuple(footage.indices[i] for i in kept) if footage.indices else (),
        name=footage.name,
    )

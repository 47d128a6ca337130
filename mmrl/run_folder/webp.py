"""Short videos of episodes in simulators and of clips in prompts, as animated WebP, which browsers play."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from mmrl.api.errors import UserError
from mmrl.api.simulators.history import present

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from mmrl.api.media.clips import Clip, VideoFrames
    from mmrl.api.simulators.types import TrajectoryData

HOLD_S = 1.0
"""Seconds that the last frame is shown before the video repeats."""
PICTURES = 64
"""Maximal number of frames of a video; longer episodes are subsampled, and each frame is shown longer."""
EXACT = 128
"""Videos whose longer side has at most so many pixels are stored lossless, larger ones lossy."""
PIXELS = 256
"""Maximal height in pixels; higher frames are scaled down."""
QUALITY = 80
"""Quality of lossy frames, 0 to 100."""
READ_FRAMES = 4 * PICTURES
"""Maximal number of frames of a file that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """T frames and their durations."""

    frames_THWC: np.ndarray
    """uint8 [T, H, W, 3]; several cameras are side by side."""
    times_ms: tuple[int, ...]
    """T durations in milliseconds, of simulated time; the last one is `HOLD_S`."""


def trajectory_video(track: TrajectoryData) -> Video | None:
    """The video of an episode: the images before each call of the policy, and the final ones. None if the simulator has no
    images.

    A frame is shown as long as its call's actions took, `TrajectoryData.step_s` each.
    """
    import numpy as np

    if not track.images:
        return None
    views = [shown.cpu().numpy() for shown in present(track.images).values()]
    count = len(views[0])
    steps = track.valid_TK.sum(1).tolist()
    ends = [0, *accumulate(steps)]  # the step before which each of the T + 1 images was taken
    chosen = sorted({round(i * (count - 1) / (PICTURES - 1)) for i in range(PICTURES)})
    starts = [round(1000 * track.step_s * ends[i]) for i in chosen]
    times = [max(1, after - before) for before, after in pairwise(starts)]
    return Video(
        frames_THWC=np.concatenate([_at_height(view[chosen], max(v.shape[1] for v in views)) for view in views], 2),
        times_ms=(*times, round(1000 * HOLD_S)),
    )


def clip_video(clip: Clip | VideoFrames | Video) -> Video:
    """The video of the frames of a clip that the policy gets, with their durations in the clip."""
    import numpy as np

    from mmrl.api.media.decoding import recent_frames

    if isinstance(clip, Video):
        return clip
    footage = recent_frames(clip)
    count = len(footage.times_s)
    chosen = sorted({round(i * (count - 1) / (PICTURES - 1)) for i in range(PICTURES)})
    starts = [footage.times_s[i] for i in chosen]
    ends = [*starts[1:], max(footage.duration_s, starts[-1])]
    times = [max(1, round(1000 * (end - start))) for start, end in zip(starts, ends, strict=True)]
    return Video(frames_THWC=np.ascontiguousarray(footage.frames_THWC[chosen]), times_ms=tuple(times))


def _at_height(frames_THWC: np.ndarray, height: int) -> np.ndarray:
    """A copy of the frames, enlarged to a height by repeating pixels."""
    import numpy as np

    rows = np.arange(height) * frames_THWC.shape[1] // height
    width = round(frames_THWC.shape[2] * height / frames_THWC.shape[1])
    columns = np.arange(width) * frames_THWC.shape[2] // width
    return frames_THWC[:, rows][:, :, columns]


def encode_webp(video: Video) -> bytes:
    """The bytes of a WebP file that repeats the video. Consecutive equal frames become one with a longer duration."""
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in video.frames_THWC]
    width, height = pictures[0].size
    exact = max(width, height) <= EXACT
    if height > PIXELS:
        size = (max(1, round(width * PIXELS / height)), PIXELS)
        pictures = [picture.resize(size) for picture in pictures]
    how = {"lossless": True} if exact else {"quality": QUALITY}
    pictures[0].save(
        out := io.BytesIO(), "WEBP", save_all=True, append_images=pictures[1:], duration=list(video.times_ms), loop=0, **how
    )
    return out.getvalue()


def decode_webp(data: bytes, what: str = "video") -> list[tuple[Image, int]]:
    """(frame, duration in milliseconds) of each frame of a WebP file, in RGB. what: the file's name, for errors.

    Raises UserError if it can't be read or is larger than the files of `encode_webp`.
    """
    from mmrl.api.media.images import load_frames

    try:
        return load_frames(data, READ_FRAMES, what, ("WEBP",))
    except UserError as error:
        raise UserError(f"{error}; it is no video of a run: remove it") from error

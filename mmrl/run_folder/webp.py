"""Episodes in simulators, and clips that a policy is shown, as short videos: animated WebP, which browsers play."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from mmrl.api.media.clips import Clip, VideoFrames
    from mmrl.api.simulators.types import TrajectoryData

HOLD_S = 1.0
"""How long the last picture stays before the video begins again."""
PICTURES = 64
"""Pictures of a video; of a longer episode some are left out, and the others stay longer."""
EXACT = 128
"""Pixels of the longer side up to which pictures are kept as they are; larger ones are compressed with losses."""
PIXELS = 256
"""Height of the largest pictures; larger ones are scaled down."""
QUALITY = 80
"""Of the lossy ones, 0 to 100."""
READ = (4096, 4 * PICTURES)
"""Pixels of a side and pictures beyond which a file is not one of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """T pictures and how long each is shown."""

    frames_THWC: np.ndarray
    """uint8 [T, H, W, 3]; several cameras stand side by side."""
    times_ms: tuple[int, ...]
    """T whole milliseconds, of simulated time; the last one's is `HOLD_S`."""


def trajectory_video(track: TrajectoryData) -> Video | None:
    """What was seen before each call of the policy, and in the end. None where the simulator shows no pictures.

    A call is shown as long as its actions took: `TrajectoryData.step_s` each.
    """
    import numpy as np

    if not track.images:
        return None
    views = [shown.cpu().numpy() for shown in track.images.values()]
    count = len(views[0])
    steps = track.valid_TK.sum(1).tolist()
    ends = [0, *accumulate(steps)]  # before which step each of the T + 1 pictures was seen
    chosen = sorted({round(i * (count - 1) / (PICTURES - 1)) for i in range(PICTURES)})
    starts = [round(1000 * track.step_s * ends[i]) for i in chosen]
    times = [max(1, after - before) for before, after in pairwise(starts)]
    return Video(
        frames_THWC=np.concatenate([_at_height(view[chosen], max(v.shape[1] for v in views)) for view in views], 2),
        times_ms=(*times, round(1000 * HOLD_S)),
    )


def clip_video(clip: Clip | VideoFrames | Video) -> Video:
    """What a policy is shown of a clip, as long as it is in the clip."""
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
    """The pictures enlarged to a height, by repeating pixels; a copy."""
    import numpy as np

    rows = np.arange(height) * frames_THWC.shape[1] // height
    width = round(frames_THWC.shape[2] * height / frames_THWC.shape[1])
    columns = np.arange(width) * frames_THWC.shape[2] // width
    return frames_THWC[:, rows][:, :, columns]


def encode_webp(video: Video) -> bytes:
    """The video as a file that plays round and round. Equal pictures that follow each other become one that stays longer."""
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
    """The pictures of such a file, RGB, and how many milliseconds each is shown. what: the file's name, for errors.

    Raises UserError where it is none, or larger than those that `encode_webp` makes.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("WEBP",)) as file:
            count = getattr(file, "n_frames", 1)
            if max(file.size) > READ[0] or count > READ[1]:
                raise UserError(f"{what}: {count} pictures of {file.size[0]} by {file.size[1]} are no video of a run: remove it")
            found = []
            for i in range(count):
                file.seek(i)
                file.load()  # which alone knows how long it is shown
                found.append((file.convert("RGB"), int(file.info.get("duration", 0))))
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise UserError(f"{what} can't be read: {error}; the file is damaged: remove it") from error
    return found

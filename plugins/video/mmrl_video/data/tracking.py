"""`video/tracking-data`: where an object is at given times, in your own clips or folders of pictures."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mmrl import Case, Prompt, user_message
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.media.clips import Clip, VideoFrames
from mmrl.api.media.decoding import cached_frames
from mmrl.api.media.images import load_image
from mmrl.api.media.picture_folders import picture_files
from mmrl.api.media.video_files import probe
from mmrl.api.tasks.option_checks import check_choice
from mmrl_video import reading, tracks
from mmrl_video.data import published
from mmrl_video.data.files import Folder, rate_of
from mmrl_video.data.tables import first, parsed, text_of
from mmrl_video.data.task import ClipData
from mmrl_video.drawn.task import STYLES, asked
from mmrl_video.drawn.tracking import WHERE

OBJECT_KEYS = ("object", "name", "expression", "caption", "sentence", "query")
BOX_KEYS = ("boxes", "gt", "track", "bboxes", "solution", "answer")
FORMS = ("xyxy", "xywh", "unit")
"""Formats of boxes: two corners; a corner and the size, both in pixels; two corners as shares of the picture."""
EIGHT = 8
"""Number of boxes in VideoChat-R1's questions."""
RATE = 10.0
"""Pictures per second of a folder, if its row has no `fps`: GOT-10k's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A clip, or pictures in its place."""

    shown: Any
    size: tuple[int, int]
    duration_s: float
    times_s: tuple[float, ...]
    """Times of the boxes."""


@dataclass(kw_only=True, eq=False)
class TrackingData(ClipData):
    """The boxes of an object over time: VideoChat-R1's JSON of GOT-10k, which names folders of pictures; your own clips."""

    boxes: str | None = None
    """Format of boxes in the table: xyxy, xywh or unit; by default unit if no number is above 1, else xyxy."""
    frame: str | None = None
    """Coordinate format of an answer: pixels (of the clip), thousandths, thousandths-yx or unit; by default the policy's if it is
    one of them, else pixels. VideoChat-R1 uses unit."""

    styles = (*STYLES, "videochat-r1")

    def __post_init__(self) -> None:
        if self.boxes is not None:
            check_choice("boxes", self.boxes, FORMS)
        if self.frame is not None:
            check_choice("frame", self.frame, [f.value for f in WHERE])
        super().__post_init__()

    @property
    def answer_frame(self) -> CoordinateFormat:
        """The coordinate format of `frame`, of the style, or of the policy."""
        if self.frame or self.style == "videochat-r1":
            return CoordinateFormat(self.frame or "unit")
        return (
            self.image_processing.coordinate_format
            if self.image_processing.coordinate_format in WHERE
            else CoordinateFormat.PIXELS
        )

    def pose(self, row: dict[str, Any], id: str, folder: Folder) -> Prompt:
        thing = text_of(row, OBJECT_KEYS)
        if not thing:
            raise ValueError(f"it names no object under any of {', '.join(OBJECT_KEYS)}")
        boxes, times = _listed(row)
        published_style = self.style == "videochat-r1"
        if published_style and len(boxes) != EIGHT:
            raise ValueError(f"it has {len(boxes)} boxes, and videochat-r1 needs {EIGHT}")
        path = folder.find(self.clip_of(row))
        found = (
            _pictures(path, len(boxes), times, rate_of(row.get("fps")) or RATE)
            if os.path.isdir(path)
            else self._clip(path, len(boxes), times, published_style)
        )
        form = self.boxes or ("unit" if all(v <= 1 for box in boxes for v in box) else "xyxy")
        pixels = [_sound(box, form, found.size) for box in boxes]
        meta = {
            "style": "short" if self.style == "short" else "tags",
            "asks": "boxes",
            "size": found.size,
            "times": list(found.times_s),
            "answer_frame": self.answer_frame.value,
            "duration": round(found.duration_s, 3),
            "object": thing,
        }
        lists = [list(tracks.written(box, Case(completion="", meta=meta))) for box in pixels]
        meta["said"] = "[" + ", ".join(f"[{', '.join(f'{v:.12g}' for v in box)}]" for box in lists) + "]"
        if published_style:
            # the published reward compares the numbers unchanged; the first box is in the prompt
            answer, meta = lists, {k: v for k, v in meta.items() if k != "size"} | {"shown": 1}
            text = published.VIDEOCHAT_R1_TRACKING.format(thing, lists[0])
            message = published.text_first(text, found.shown)
        else:
            answer = [list(box) for box in pixels]
            message = user_message(self._text(thing, found, len(boxes)), found.shown)
        return Prompt(id=id, messages=[message], answer=answer, meta=meta)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The figures of `groups` and `sets`."""
        return self.column_figures(results)

    def _clip(self, path: str, count: int, times: Sequence[float], as_shown: bool) -> _Seen:
        """A file. Boxes without times are at evenly spaced times from its first frame to its last."""
        facts = probe(path)
        height, width = cached_frames(Clip(path=path, indices=(0,))).frames_THWC.shape[1:3]  # upright, unlike a file's own size
        size = (width, height)
        if not times:
            if count > facts.frames:
                raise ValueError(f"it has {count} boxes and its clip {facts.frames} frames")
            at = [round(i * (facts.frames - 1) / max(count - 1, 1)) for i in range(count)]
            times = [facts.times_s[i] for i in at]
            if as_shown:
                return _Seen(
                    shown=self.clip(path, fps=None, count=None, indices=tuple(at)),
                    size=size,
                    duration_s=facts.duration_s,
                    times_s=tuple(round(t, 3) for t in times),
                )
        elif max(times) > facts.duration_s + 1e-6:
            raise ValueError(f"it has a box at {max(times):g} s, and its clip ends after {facts.duration_s:.2f} s")
        return _Seen(shown=self.clip(path), size=size, duration_s=facts.duration_s, times_s=tuple(round(t, 3) for t in times))

    def _text(self, thing: str, found: _Seen, count: int) -> str:
        moments = ", ".join(f"{t:.12g}" for t in found.times_s)
        where = WHERE[self.answer_frame].format(*found.size)
        what = f"a list of its {count} boxes, as [{self.answer_frame.names('box', json=True)}, ...], in {where}"
        return asked(f"Where is the {thing.removeprefix('the ')} at {moments} seconds?", what, self.style, self.prompt)


def _listed(row: Mapping[str, Any]) -> tuple[list[list[float]], list[float]]:
    """(the boxes of a row unchanged, their times in seconds if it has any)."""
    given = parsed(first(row, BOX_KEYS))
    if not isinstance(given, list) or not 1 <= len(given) <= tracks.MOST:
        raise ValueError(f"it has no list of 1 to {tracks.MOST} boxes under any of {', '.join(BOX_KEYS)}")
    entries = [one if isinstance(one, Mapping) else {"bbox_2d": one} for one in given]
    boxes = [first(one, tracks.KEYS) for one in entries]
    for box in boxes:
        if not isinstance(box, list | tuple) or len(box) != 4 or not all(_is_number(v) for v in box):
            raise ValueError(f"its box {box!r:.60} is not four finite numbers")
    own = parsed(row.get("times"))
    said = own if isinstance(own, list) else [first(one, tracks.TIMES) for one in entries]
    times = [reading.seconds(one) for one in said]
    if all(one is None for one in said):
        return [list(box) for box in boxes], []
    if len(times) != len(boxes) or any(t is None or t < 0 for t in times):
        raise ValueError(f"its {len(boxes)} boxes need as many times in seconds, 0 at least, and have {str(said)[:60]}")
    kept = [t for t in times if t is not None]
    if any(b <= a for a, b in pairwise(kept)):
        raise ValueError(f"the times of its boxes don't increase: {str(said)[:60]}")
    return [list(box) for box in boxes], kept


def _sound(box: Sequence[float], form: str, size: tuple[int, int]) -> tracks.Box:
    """A box in pixels, clipped to the picture's edges."""
    a, b, c, d = map(float, box)
    x1, y1, x2, y2 = (a, b, a + c, b + d) if form == "xywh" else (a, b, c, d)
    if form == "unit":
        x1, y1, x2, y2 = (round(v * side, 2) for v, side in zip((x1, y1, x2, y2), size * 2, strict=True))
    if x1 >= x2 or y1 >= y2:
        raise ValueError(f"its box {list(box)} is {'empty' if x1 == x2 or y1 == y2 else 'reversed'}")
    cut = (max(x1, 0.0), max(y1, 0.0), min(x2, float(size[0])), min(y2, float(size[1])))
    if cut[0] >= cut[2] or cut[1] >= cut[3] or x2 > size[0] * 1.01 + 1 or y2 > size[1] * 1.01 + 1:
        raise ValueError(f"its box {list(box)} is outside its clip of {size[0]} x {size[1]}")
    return cut


def _pictures(folder: str, count: int, times: Sequence[float], rate: float) -> _Seen:
    """A folder of pictures, `rate` per second, as a clip: those of the boxes, evenly from the first to the last, or at their
    times."""
    import numpy as np

    files = picture_files(folder)
    if len(files) < count:
        raise ValueError(f"it has {count} boxes and its folder {len(files)} pictures")
    at = [round(t * rate) for t in times] or [round(i * (len(files) - 1) / max(count - 1, 1)) for i in range(count)]
    if at[-1] >= len(files) or len(set(at)) < count:
        raise ValueError(f"the times of its boxes do not fit its {len(files)} pictures, {rate:g} a second")
    pictures = [np.asarray(load_image(files[i]).convert("RGB")) for i in at]
    if len({one.shape for one in pictures}) > 1:
        raise ValueError("its pictures have several sizes")
    frames = np.stack(pictures)
    shown = tuple(i / rate for i in at)
    footage = VideoFrames(frames_THWC=frames, times_s=shown, duration_s=len(files) / rate, indices=tuple(at), name=folder)
    size = (frames.shape[2], frames.shape[1])
    return _Seen(shown=footage, size=size, duration_s=footage.duration_s, times_s=tuple(round(t, 3) for t in shown))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

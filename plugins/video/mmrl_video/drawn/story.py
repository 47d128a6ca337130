"""The content of a clip, frame by frame, as plain data: the ground truth, and the input for painting."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmrl_video.drawn.shapes import COLOURS, background, lettering, mask

if TYPE_CHECKING:
    import numpy as np

Box = tuple[int, int, int, int]
"""x1, y1, x2, y2 in pixels: it covers x1 to x2 - 1."""
VERSION = 1
"""Increase it when stories are painted or encoded differently, so that old files are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """An object over F frames."""

    shape: str
    """Of `SHAPES`."""
    colour: str
    """The colour in its name."""
    boxes_F: tuple[Box, ...]
    """Its boxes, which may exceed the picture."""
    colours_F: tuple[str, ...]
    """Of `COLOURS`, or empty in frames in which it is invisible."""

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """A line of text on a dark band."""

    text: str
    first: int
    """The frame in which it appears."""
    last: int
    """The first frame without it."""
    band: Box
    """Region of the band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event from `start_s` to `end_s`, exclusive."""

    kind: str
    who: int
    """Index of the actor; -1 for a caption."""
    start_s: float
    end_s: float
    tells: str
    """A sentence without its full stop: `the red circle blinks`."""
    asks: str
    """Text after `When` in a question: `does the red circle blink`."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes: `count`, `colour`, `direction`, `text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A clip before painting."""

    width: int
    height: int
    rate: int
    """Frames per second."""
    frames: int
    """F."""
    background: tuple[str, int]
    """(kind, seed) for `shapes.background`."""
    actors: tuple[Actor, ...]
    captions: tuple[Caption, ...] = ()
    events: tuple[Event, ...] = ()
    """Events by start."""

    @property
    def duration_s(self) -> float:
        return self.frames / self.rate

    def seen(self, who: int, frame: int) -> Box | None:
        """The part of an actor's box that is in the picture; None if it is invisible."""
        actor = self.actors[who]
        x1, y1, x2, y2 = actor.boxes_F[frame]
        cut = (max(x1, 0), max(y1, 0), min(x2, self.width), min(y2, self.height))
        return cut if actor.colours_F[frame] and cut[0] < cut[2] and cut[1] < cut[3] else None

    def plot(self) -> str:
        """A digest of the events, without the background: clips of equal plots are in one split."""
        told = {k: v for k, v in dataclasses.asdict(self).items() if k not in ("background", "events")}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def digest(self) -> str:
        """A file name: a digest of everything that is painted."""
        return hashlib.sha256(f"{VERSION} {self.plot()} {self.background}".encode()).hexdigest()[:40]


def paint(story: Story) -> np.ndarray:
    """The frames, uint8 [F, height, width, 3]; later actors are in front of earlier ones, captions in front of all."""
    import numpy as np

    behind = background(*story.background[:1], story.width, story.height, story.background[1])
    frames_FHWC = np.repeat(behind[None], story.frames, axis=0)
    for number, frame_HWC in enumerate(frames_FHWC):
        for actor in story.actors:
            if colour := actor.colours_F[number]:
                x1, y1, x2, _ = actor.boxes_F[number]
                _blend(frame_HWC, mask(actor.shape, x2 - x1), x1, y1, COLOURS[colour])
        for caption in story.captions:
            if caption.first <= number < caption.last:
                _write(frame_HWC, caption)
    return frames_FHWC


def _blend(frame_HWC: np.ndarray, cover_hw: np.ndarray, x: int, y: int, colour: tuple[int, int, int]) -> None:
    """Blends a colour into a frame, with a corner at (x, y), which may be outside of it."""
    import numpy as np

    height, width = frame_HWC.shape[:2]
    top, left = max(0, -y), max(0, -x)
    cover_hw = cover_hw[top : height - y, left : width - x]
    if not cover_hw.size:
        return
    part = frame_HWC[y + top : y + top + cover_hw.shape[0], x + left : x + left + cover_hw.shape[1]]
    cover_hw1 = cover_hw[..., None]
    part[:] = (part * (1 - cover_hw1) + np.array(colour, np.float32) * cover_hw1).round()


def _write(frame_HWC: np.ndarray, caption: Caption) -> None:
    """The band with its text in the middle, as large as possible."""
    x1, y1, x2, y2 = caption.band
    frame_HWC[y1:y2, x1:x2] = (20, 20, 20)
    height = max(5, round(0.55 * (y2 - y1)))
    while (letters := lettering(caption.text, height)).shape[1] > x2 - x1 - 4 and height > 5:
        height -= 1
    _blend(frame_HWC, letters, x1 + (x2 - x1 - letters.shape[1]) // 2, y1 + (y2 - y1 - letters.shape[0]) // 2, (250, 250, 250))

"""Sources of clips for questions: generated, or from a folder. Both are files, by split."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mmrl import UserError
from mmrl.api.tasks.image_sources import chance, hash_rank, split_files
from mmrl_video.drawn import films, moves, plots
from mmrl_video.drawn.plots import Plot, Stage
from mmrl_video.drawn.story import Story

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".3gp", ".ogv")
CENTRAL = 0.9
"""The share of a clip that is used, around its middle, as in VideoSSR, because titles are at the ends."""
VIVID = ("red", "blue", "yellow")
"""Colours of the first object of generated clips, on which every change of colours is visible."""
SPLITS = ("warm", "train", "test")


class Source(Protocol):
    """Clips by split; splits share no clip."""

    @property
    def ids(self) -> Mapping[str, Sequence[str]]: ...

    def path(self, split: str, index: int) -> str: ...


@dataclass
class Drawn:
    """Clips with objects that move in one direction all the time, so that every frame is different, and frames have an order."""

    stage: Stage
    counts: Mapping[str, int]
    seed: int
    shapes: Sequence[str]
    """Shapes of the objects."""
    ways: Sequence[str]
    """Directions of the first object: right, left."""

    def __post_init__(self) -> None:
        self.ids = {split: [f"{split}-{i}" for i in range(count)] for split, count in self.counts.items()}

    def path(self, split: str, index: int) -> str:
        return films.file_of(self.story(split, index))

    def story(self, split: str, index: int) -> Story:
        for attempt in range(200):
            draw = chance(self.seed, "video", "pretext", self.ids[split][index], str(attempt))
            story = self._plot(draw).story()
            if SPLITS[hash_rank(0, "split", story.plot()) % len(SPLITS)] == split:
                return story
        raise UserError(f"found no clip for split {split!r}: raise objects or size")

    def _plot(self, draw: random.Random) -> Plot:
        count = draw.randint(1, self.stage.objects)
        shapes = [draw.choice(tuple(self.shapes)) for _ in range(count)]
        plot = plots.cast(draw, self.stage, exactly=count, shapes=shapes, first=VIVID)
        for who, one in enumerate(plot.parts):
            right = draw.choice(tuple(self.ways)) == "right" if who == 0 else draw.random() < 0.5
            moves.cross(one, right)
        return plot


@dataclass
class Folder:
    """The clips in a folder and its subfolders; the name alone decides the split."""

    folder: str
    each: int
    """Items of each clip."""
    seed: int

    def __post_init__(self) -> None:
        self.ids, self.files = split_files(self.folder, self.each, self.seed, SUFFIXES, "clip")

    def path(self, split: str, index: int) -> str:
        return str(self.files[split][index])


def sampled(path: str, count: int, most_pixels: int) -> tuple[np.ndarray, float]:
    """`count` frames of the middle of a clip, evenly spread, uint8 [T, H, W, 3], reduced to at most `most_pixels` pixels each;
    and their number per second.

    Raises UserError for a clip that can't be decoded or has too few frames.
    """
    from mmrl.api.media.clips import Clip, VideoLimits
    from mmrl.api.media.decoding import cached_frames
    from mmrl.api.media.video_files import probe

    facts = probe(path)
    margin = facts.duration_s * (1 - CENTRAL) / 2
    clip = Clip(path=path, count=count, start_s=margin, end_s=facts.duration_s - margin)
    frames_THWC = cached_frames(clip, VideoLimits(max_frames=count, max_pixels=most_pixels)).frames_THWC
    if len(frames_THWC) != count:
        raise UserError(
            f"video {path} has {facts.frames} frames, too few for {count} of its middle {CENTRAL:.0%}: leave it out, or lower "
            "frames"
        )
    return frames_THWC, count / (facts.duration_s * CENTRAL)


def footage(frames_THWC: np.ndarray, fps: float, name: str) -> Any:
    """Frames for a prompt, with times from 0 on, because their own times would reveal the order."""
    from mmrl.api.media.clips import VideoFrames

    count = len(frames_THWC)
    return VideoFrames(frames_THWC=frames_THWC, times_s=tuple(i / fps for i in range(count)), duration_s=count / fps, name=name)

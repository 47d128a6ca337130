"""Common parts of the three tasks: clips, number of frames, prompts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mmrl import Prompt, UserError
from mmrl.api.tasks.image_sources import SPLIT_SHARES, chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl_video.drawn.plots import SIZES, Stage
from mmrl_video.drawn.shapes import BACKGROUNDS, SHAPES
from mmrl_video.drawn.task import STYLES, Posed, PosedOfClips, asked, pair, some
from mmrl_video.pretext.sources import CENTRAL, Drawn, Folder, Source, sampled

if TYPE_CHECKING:
    import numpy as np

WAYS = ("right", "left")
FASTEST = 60
"""Maximal frames per second of generated clips."""


@dataclass(kw_only=True, eq=False)
class Pretext(PosedOfClips):
    """Base class of self-supervised questions about clips. The run's seed changes nothing: an id always means the same item."""

    path: str | None = None
    """A folder of clips, with or without subfolders; by default clips are generated."""
    frames: int = 16
    """Number of frames in a prompt, evenly spread over the middle 90% of a clip. VideoSSR has 48."""
    pixels: int = 65536
    """Maximum of pixels of a frame; larger ones are reduced."""
    size: str = "small"
    """Size of generated clips: small (64 x 64), middle (224 x 224), large (448 x 336)."""
    seconds: Sequence[int] = (8, 16)
    """[minimum, maximum] length of generated clips in whole seconds."""
    objects: int = 2
    """Maximum of objects in generated clips, 1 to 4."""
    ways: Sequence[str] = WAYS
    """Directions of the first object in generated clips, of right and left."""
    backgrounds: Sequence[str] = BACKGROUNDS
    """Kinds of backgrounds of generated clips: plain, texture and photo."""
    style: str = "short"
    """The requested form of the answer: short, the answer alone; tags, a thought and the answer, each in its tag."""
    prompt: str | None = None
    """Text after the question, instead of the instructions for the answer."""
    each: int = 1
    """Items of each clip of a folder."""
    warm: int = 500
    """Items of generated clips in the split `warm`, for imitation before reinforcement learning; a folder has no such split."""
    train: int = 2000
    """Items of generated clips in the split `train`."""
    test: int = 200
    """Items of generated clips in the split `test`."""
    seed: int = 0
    """Seed of the clips and their changes, and of the splits of a folder's clips."""

    about: ClassVar[str]
    dense: ClassVar[int] = 1
    """Minimal number of frames of a generated clip for each frame in the prompt."""
    things: ClassVar[tuple[str, ...]] = tuple(SHAPES)
    """The shapes in generated clips."""

    def __post_init__(self) -> None:
        check_integer("frames", self.frames, 4, 512)
        check_integer("pixels", self.pixels, 1024, 2**22)
        check_choice("size", self.size, SIZES)
        pair("seconds", self.seconds, 3, 120)
        check_integer("objects", self.objects, 1, 4)
        some("ways", self.ways, WAYS)
        some("backgrounds", self.backgrounds, BACKGROUNDS)
        check_choice("style", self.style, STYLES)
        if self.prompt is not None:
            check_type("prompt", self.prompt, str, '"Answer with one word."')
        check_integer("each", self.each, 1, 10_000)
        for split in ("warm", "train", "test"):
            check_integer(split, getattr(self, split), 1, 10_000_000)
        check_integer("seed", self.seed, -(2**62), 2**62)
        self.source: Source
        if self.path is not None:
            check_type("path", self.path, str, '"clips"')
            self.splits = tuple(SPLIT_SHARES)  # type: ignore[misc]
            self.source = Folder(self.path, self.each, self.seed)
        else:
            self.splits = ("warm", "train", "test")  # type: ignore[misc]
            self.source = self._drawn()

    def _drawn(self) -> Drawn:
        width, height, rate = SIZES[self.size]
        shortest, longest = self.seconds
        needed = self.dense * self.frames / (CENTRAL * shortest)
        rate = max(rate, 2 * math.ceil(needed / 2))
        if rate > FASTEST:
            raise UserError(
                f"frames = {self.frames} of clips of {shortest} s need more than {FASTEST} frames per second: raise "
                "seconds, or lower frames"
            )
        stage = Stage(
            width=width,
            height=height,
            rate=rate,
            shortest_s=shortest,
            longest_s=longest,
            objects=self.objects,
            backgrounds=tuple(self.backgrounds),
        )
        counts = {split: getattr(self, split) for split in ("warm", "train", "test")}
        return Drawn(stage, counts, self.seed, self.things, tuple(self.ways))

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        return LazyPrompts(range(len(self.source.ids[split])), lambda index: self._item(split, index))

    def pose(self, draw: random.Random, split: str, index: int) -> tuple[Posed, list[np.ndarray], float]:
        """(a question about an item, its clips, uint8 [T, H, W, 3] each, frames per second)."""
        raise NotImplementedError(f"{type(self).__name__} must define pose(draw, split, index)")

    def message(self, text: str, shown: Sequence[Any]) -> dict[str, Any]:
        """The message of a prompt."""
        return {"role": "user", "content": [*({"type": "video", "video": s} for s in shown), {"type": "text", "text": text}]}

    def read(self, split: str, index: int, count: int = 0) -> tuple[np.ndarray, float]:
        """(`frames` frames of an item's clip, or `count`; their number per second)."""
        return sampled(self.source.path(split, index), count or self.frames, self.pixels)

    def _item(self, split: str, index: int) -> Prompt:
        from mmrl_video.pretext.sources import footage

        id = self.source.ids[split][index]
        posed, shown, fps = self.pose(chance(self.seed, "video", self.about, id), split, index)
        meta = {
            "style": self.style,
            "kind": posed.kind,
            "said": posed.said,
            "thought": posed.thought,
            "duration": sum(map(len, shown)) / fps,
            **posed.meta,
        }
        text = asked(posed.text, posed.what, self.style, self.prompt)
        message = self.message(text, [footage(frames_THWC, fps, f"of {id}") for frames_THWC in shown])
        return Prompt(id=id, messages=[message], answer=posed.answer, meta=meta)

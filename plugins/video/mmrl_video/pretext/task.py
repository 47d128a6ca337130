"""What the three tasks share: whose clips they are, how many frames are shown, how an answer is asked for."""

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
"""Frames a second of drawn clips, at most."""


@dataclass(kw_only=True, eq=False)
class Pretext(PosedOfClips):
    """A question that a clip answers about itself. The run's seed draws nothing: an id always means the same item."""

    path: str | None = None
    """A folder of clips, with or without folders in it; by default clips are drawn."""
    frames: int = 16
    """How many are shown, evenly spread over the middle 90% of a clip. VideoSSR shows 48."""
    pixels: int = 65536
    """The most pixels of a frame; larger ones are shrunk."""
    size: str = "small"
    """Of drawn clips: small (64 x 64), middle (224 x 224), large (448 x 336)."""
    seconds: Sequence[int] = (8, 16)
    """Of drawn clips: [shortest, longest] in whole seconds."""
    objects: int = 2
    """Of drawn clips: the most things, 1 to 4."""
    ways: Sequence[str] = WAYS
    """Of drawn clips: which way the first thing goes, some of right, left."""
    backgrounds: Sequence[str] = BACKGROUNDS
    """Of drawn clips: of plain, texture and photo."""
    style: str = "short"
    """How the answer is asked for: short, the answer alone; tags, a thought and the answer, each in its tag."""
    prompt: str | None = None
    """What follows the question, in place of the sentence that says how to answer."""
    each: int = 1
    """Items of each clip of a folder."""
    warm: int = 500
    """Items of drawn clips in the split `warm`, to imitate before training by reward; a folder has no such split."""
    train: int = 2000
    """Items of drawn clips in the split `train`."""
    test: int = 200
    """Items of drawn clips in the split `test`."""
    seed: int = 0
    """Draws the clips and what is done to them, and which clip of a folder belongs to which split."""

    about: ClassVar[str]
    dense: ClassVar[int] = 1
    """How many frames a drawn clip has for each that is shown, at least."""
    things: ClassVar[tuple[str, ...]] = tuple(SHAPES)
    """The shapes on drawn clips."""

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
                f"frames = {self.frames} of clips of {shortest} s: none of more than {FASTEST} frames a second are drawn: raise "
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
        """A question about an item, what is shown, uint8 [T, H, W, 3] each, and its frames a second."""
        raise NotImplementedError(f"{type(self).__name__} must define pose(draw, split, index)")

    def message(self, text: str, shown: Sequence[Any]) -> dict[str, Any]:
        """What the policy is shown."""
        return {"role": "user", "content": [*({"type": "video", "video": s} for s in shown), {"type": "text", "text": text}]}

    def read(self, split: str, index: int, count: int = 0) -> tuple[np.ndarray, float]:
        """`frames` frames of an item's clip, or as many as are asked for, and how many of them there are a second."""
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

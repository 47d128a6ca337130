"""`video/anomaly`: when a clip is disturbed, after VideoSSR's anomaly grounding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrl import Prompt, UserError
from mmrl.api.tasks.option_checks import check_choice
from mmrl_video.drawn.task import Posed, some
from mmrl_video.metrics import grounding_figures
from mmrl_video.pretext.disturb import KINDS, PACE, TRAINED, disturbed, is_seen, moves, pace
from mmrl_video.pretext.task import Pretext

if TYPE_CHECKING:
    import numpy as np

UNITS = ("seconds", "frames")
WHAT = {
    "seconds": "its start and its end in seconds, as START-END",
    "frames": "its first frame and the first one after it, counted from 0, as FIRST-LAST",
}
TRIES = 20


@dataclass(kw_only=True, eq=False)
class Anomaly(Pretext):
    """Between a sixth and a third of the frames, consecutive ones, are disturbed: 8 to 16 of 48, as in VideoSSR."""

    kinds: Sequence[str] = TRAINED
    """Kinds of disturbances, see `disturb.KINDS`; by default VideoSSR's in training."""
    units: str = "seconds"
    """Unit of the answer: seconds, to a tenth; or frames."""

    about = "anomaly"

    def __post_init__(self) -> None:
        some("kinds", self.kinds, tuple(KINDS))
        check_choice("units", self.units, UNITS)
        if set(self.kinds) & set(PACE):
            self.dense = 3  # type: ignore[misc]  # a stretch may be twice as fast
        super().__post_init__()
        if "swap" in self.kinds and (alone := [s for s in self.splits if len(self.source.ids[s]) < 2]):
            raise UserError(f"kinds = {list(self.kinds)}: swap needs two clips in each split, and {alone[0]!r} has one")

    def pose(self, draw: random.Random, split: str, index: int) -> tuple[Posed, list[np.ndarray], float]:
        plain_THWC, fps = self.read(split, index)
        for _ in range(TRIES):
            kind, long = draw.choice(tuple(self.kinds)), draw.randint(max(2, self.frames // 6), max(2, self.frames // 3))
            first = draw.randint(0, self.frames - long)
            shown_THWC, shown_fps = self._disturbed(draw, kind, plain_THWC, fps, (first, first + long), (split, index))
            if shown_THWC is not None:
                return self._posed(kind, first, first + long, shown_fps), [shown_THWC], shown_fps
        raise UserError(
            f"clip {self.source.path(split, index)}: none of {', '.join(self.kinds)} is visible in it: leave it out, or give "
            "more kinds"
        )

    def _disturbed(
        self, draw: random.Random, kind: str, plain_THWC: np.ndarray, fps: float, span: tuple[int, int], item: tuple[str, int]
    ) -> tuple[np.ndarray | None, float]:
        """(frames, None if no difference would be visible; their number per second)."""
        if kind in PACE:
            chosen = pace(kind, self.frames, *span)
            dense_THWC, dense_fps = self.read(*item, chosen[-1] + 1)
            shown_THWC = dense_THWC[chosen]
            return (shown_THWC if moves(dense_THWC[chosen[span[0]] : chosen[span[1] - 1] + 1]) else None), dense_fps / 2
        other_THWC = self._another(draw, *item, plain_THWC) if kind == "swap" else None
        shown_THWC = disturbed(draw, kind, plain_THWC, *span, other_THWC)
        part = slice(*span)
        seen = moves(plain_THWC[part]) if kind in ("shuffle", "stutter") else is_seen(plain_THWC[part], shown_THWC[part])
        return (shown_THWC if seen else None), fps

    def _another(self, draw: random.Random, split: str, index: int, like_THWC: np.ndarray) -> np.ndarray:
        """Frames of another clip of the split, of the size of these."""
        import numpy as np
        from PIL import Image

        count = len(self.source.ids[split])
        start = draw.randrange(count)
        mine = self.source.path(split, index)
        for other in (*range(start, count), *range(start)):
            if self.source.path(split, other) != mine:
                frames_THWC, _ = self.read(split, other)
                size = like_THWC.shape[2], like_THWC.shape[1]
                return np.stack([np.asarray(Image.fromarray(f).resize(size)) for f in frames_THWC])
        raise UserError(f"there is no other clip in {split} to insert into {mine}: add clips")

    def _posed(self, kind: str, first: int, last: int, fps: float) -> Posed:
        unit_s = 1 / fps if self.units == "frames" else 1.0
        digits = 1 if fps < 10 else 2 if fps < 100 else 3  # so that no span is empty
        span = [first, last] if self.units == "frames" else [round(first / fps, digits), round(last / fps, digits)]
        return Posed(
            text=f"In one stretch of this clip {KINDS[kind]}. When is that?",
            answer=span,
            said=f"{span[0]}-{span[1]}",
            thought=f"I look for the stretch in which {KINDS[kind]}.",
            what=WHAT[self.units],
            kind=kind,
            meta={"asks": "span", "spans": [(first / fps, last / fps)], "unit_s": unit_s, "duration": self.frames / fps / unit_s},
        )

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Mean IoU, the share of items with an IoU of at least 0.3, 0.5 and 0.7, and the mean for each kind."""
        return {**grounding_figures([score for _, score in results]), **super().summarise(results)}

"""`video/jigsaw`: the order of a clip's parts, after VideoSSR's temporal jigsaw."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mmrl import Prompt, UserError
from mmrl.api.tasks.option_checks import check_choice, check_integer
from mmrl_video.drawn.task import Posed
from mmrl_video.pretext.disturb import moves
from mmrl_video.pretext.task import Pretext

if TYPE_CHECKING:
    import numpy as np

SHOWN = ("parts", "whole")


@dataclass(kw_only=True, eq=False)
class Jigsaw(Pretext):
    """A clip is cut into parts of equal length, which are shown in random order. The answer has a digit for each part of the
    original, from the first to the last: its position in the prompt."""

    parts: int = 3
    """Number of parts, 2 to 9. VideoSSR has 6 or 8 of 8 frames each."""
    shown: str = "parts"
    """parts: each part is a separate video; whole: one video with all parts in sequence."""
    frames: int = 12

    about = "jigsaw"

    def __post_init__(self) -> None:
        check_integer("parts", self.parts, 2, 9)
        check_choice("shown", self.shown, SHOWN)
        super().__post_init__()
        if self.frames % self.parts or self.frames < 2 * self.parts:
            raise UserError(f"frames = {self.frames} must be a multiple of {self.parts} parts, with two frames or more for each")

    def pose(self, draw: random.Random, split: str, index: int) -> tuple[Posed, list[np.ndarray], float]:
        import numpy as np

        frames_THWC, fps = self.read(split, index)
        cut = np.split(frames_THWC, self.parts)
        if not all(moves(np.stack([a[-1], b[-1]])) for a, b in pairwise(cut)):
            raise UserError(f"clip {self.source.path(split, index)}: nothing moves in it, so its parts have no order")
        order = draw.sample(range(self.parts), self.parts)  # the part at each position
        answer = "".join(str(order.index(part) + 1) for part in range(self.parts))
        what = f"{self.parts} digits: the place of the part that comes first in the original, then of the second, and so on"
        several = "These clips are the parts of one" if self.shown == "parts" else f"This clip is cut into {self.parts} parts"
        posed = Posed(
            text=f"{several}, in a wrong order or the right one, at places 1 to {self.parts}. In which order do they belong?",
            answer=answer,
            said=answer,
            thought="I look how each part goes on.",
            what=what,
            meta={"asks": "order", "parts": self.parts, "order": order},
        )
        placed = [cut[part] for part in order]
        return posed, placed if self.shown == "parts" else [np.concatenate(placed)], fps

    def message(self, text: str, shown: Sequence[Any]) -> dict[str, Any]:
        if self.shown == "whole":
            return super().message(text, shown)
        named = [({"type": "text", "text": f"Clip {n}:"}, {"type": "video", "video": clip}) for n, clip in enumerate(shown, 1)]
        return {"role": "user", "content": [*(part for pair in named for part in pair), {"type": "text", "text": text}]}

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """`exact`, the share of clips with all parts in the right order; wrong orders may also score."""
        return {"exact": sum(score == 1 for _, score in results) / max(len(results), 1), **super().summarise(results)}

"""`video/tracking`: where an object is at given times."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from mmrl import Case
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.tasks.option_checks import check_choice, check_integer
from mmrl_video import tracks
from mmrl_video.drawn import plots
from mmrl_video.drawn.moves import BEAT_S, Part
from mmrl_video.drawn.plots import Plot
from mmrl_video.drawn.task import DrawnClips, Posed

WHERE = {
    CoordinateFormat.PIXELS: "pixels of the {0} x {1} clip",
    CoordinateFormat.THOUSANDTHS: "thousandths of the clip's width and height",
    CoordinateFormat.UNIT: "parts of the clip's width and height, from 0 to 1",
    CoordinateFormat.THOUSANDTHS_YX: "thousandths of the clip's height and width",
}
LARGE = (0.2, 0.32)
"""Minimal and maximal side of the tracked object, as shares of the picture's shorter side."""


@dataclass(kw_only=True, eq=False)
class Tracking(DrawnClips):
    """An object moves over the whole picture, in front of the others; the answer is its boxes at given times."""

    boxes: int = 8
    """Number of boxes, at times evenly spread over the clip, 1 to 16; VideoChat-R1 has 8."""
    frame: str | None = None
    """Coordinate format of a box: pixels (of the clip), thousandths, thousandths-yx or unit; by default the policy's if it is one
    of them, else pixels."""

    about = "tracking"

    def __post_init__(self) -> None:
        check_integer("boxes", self.boxes, 1, 16)
        if self.frame is not None:
            check_choice("frame", self.frame, [f.value for f in WHERE])
        super().__post_init__()

    @property
    def answer_frame(self) -> CoordinateFormat:
        """The coordinate format of `frame`, or of the policy. Pixels of the model's input are not used, because they depend on
        the clip's length."""
        return (
            CoordinateFormat(self.frame)
            if self.frame
            else self.image_processing.coordinate_format
            if self.image_processing.coordinate_format in WHERE
            else CoordinateFormat.PIXELS
        )

    def tell(self, draw: random.Random) -> Plot:
        plot = plots.cast(draw, self.stage)
        target = plot.parts.pop(0)
        _wanders(draw, target, self.stage.width, self.stage.height, self.stage.rate)
        plot.parts.append(target)  # in front of the others
        return plot

    def ask(self, draw: random.Random, plot: Plot) -> Posed | None:
        target, per_beat, size = plot.parts[-1], self.stage.per_beat, (self.stage.width, self.stage.height)
        beats = plot.frames // per_beat
        if beats < self.boxes:
            return None
        at = [beats * i // self.boxes * per_beat for i in range(self.boxes)]
        times = [i / self.stage.rate for i in at]
        moments = ", ".join(f"{t:.12g}" for t in times)
        boxes = [[target.x_F[i], target.y_F[i], target.x_F[i] + target.size, target.y_F[i] + target.size] for i in at]
        meta = {"asks": "boxes", "size": size, "times": times, "answer_frame": self.answer_frame.value}
        said = ", ".join(f"[{', '.join(f'{v:.12g}' for v in _written(box, meta))}]" for box in boxes)
        where = WHERE[self.answer_frame].format(*size)
        return Posed(
            text=f"Where is the {target.name} at {moments} seconds?",
            answer=boxes,
            said=f"[{said}]",
            thought=f"I follow the {target.name}.",
            what=f"a list of its {self.boxes} boxes, as [{self.answer_frame.names('box', json=True)}, ...], in {where}",
            meta=meta,
        )


def _written(box: list[int], meta: Mapping[str, object]) -> tracks.Box:
    """A box in pixels -> as written in an answer."""
    x1, y1, x2, y2 = box
    return tracks.written((float(x1), float(y1), float(x2), float(y2)), Case(completion="", meta=meta))


def _wanders(draw: random.Random, one: Part, width: int, height: int, rate: int) -> None:
    """Moves an object from point to point in straight lines, some seconds each."""
    one.size = max(10, round(min(width, height) * draw.uniform(*LARGE)))
    places = [(draw.randint(0, width - one.size), draw.randint(0, height - one.size))]
    at = [0]
    while at[-1] < one.frames:
        at.append(at[-1] + round(rate * BEAT_S * draw.randint(3, 7)))
        places.append((draw.randint(0, width - one.size), draw.randint(0, height - one.size)))
    leg = 0
    for i in range(one.frames):
        while i >= at[leg + 1]:
            leg += 1
        share = (i - at[leg]) / (at[leg + 1] - at[leg])
        (x1, y1), (x2, y2) = places[leg], places[leg + 1]
        one.x_F[i], one.y_F[i] = round(x1 + (x2 - x1) * share), round(y1 + (y2 - y1) * share)
    one.size_F[:] = [one.size] * one.frames

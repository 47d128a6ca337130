"""Display of answers about clips: true and answered times below a clip, and boxes on a filmstrip of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmrl import Case, Overlay, Prompt
from mmrl.api.coordinates import CoordinateFormat, convert_coordinates
from mmrl.api.media.clips import VideoFrames
from mmrl.api.media.decoding import recent_frames
from mmrl.api.media.filmstrip import SAID, TRUE, filmstrip
from mmrl.api.tasks.overlays import OverlaySource
from mmrl.api.verifiers.parse import first_tag
from mmrl_video import reading, spans, tracks

if TYPE_CHECKING:
    from PIL.Image import Image


def time_overlays(prompt: Prompt, completion: str) -> list[Overlay]:
    """The true times of the prompt's first clip, `meta["spans"]`, and those in a completion."""
    true = prompt.meta.get("spans")
    if not true or not prompt.videos:
        return []
    length, unit = recent_frames(prompt.videos[0]).duration_s, float(prompt.meta.get("unit_s", 1.0))
    said = [(start * unit, end * unit) for start, end in times_said(completion, prompt.meta)]
    fits = f"IoU {spans.iou(said, true):.2f}" if said else ""
    listed: list[tuple[OverlaySource, spans.Span]] = [*(("true", span) for span in true), *(("said", span) for span in said)]
    return [
        Overlay(kind="interval", coordinates=(*span, length), source=of, label=fits if of == "said" and len(said) == 1 else "")
        for of, span in listed
    ]


def times_said(completion: str, meta: Mapping[str, Any]) -> list[tuple[float, float]]:
    """The spans in a completion's `<glue>` or its answer, after the letter of an option; empty without any."""
    glue = first_tag(completion, "glue")
    text = glue if glue is not None else reading.said(Case(completion=completion, meta=meta))[0]
    if text is None or len(text) > reading.LONGEST:
        return []
    digit = next((i for i, sign in enumerate(text) if sign.isdigit()), 0)
    return reading.spans(text) or reading.spans(text[digit:]) or []


def shown(prompt: Prompt, completion: str) -> Image | None:
    """The frames at the question's times as a filmstrip, with the true and the answered boxes; None without answered boxes."""
    if not prompt.videos or prompt.meta.get("asks") != "boxes":
        return None
    from PIL import Image, ImageDraw

    case = Case(completion=completion, meta=prompt.meta)
    answer = reading.said(case)[0]
    said = tracks.placed(answer) if answer is not None else None
    if not said:
        return None
    footage, times = recent_frames(prompt.videos[0]), prompt.meta["times"]
    at = [min(range(len(footage.times_s)), key=lambda i, t=t: abs(footage.times_s[i] - t)) for t in times]  # type: ignore[misc]
    height, width = footage.frames_THWC.shape[1:3]
    true = [tracks.written(box, Case(completion="", meta=prompt.meta)) for box in _corners(prompt.answer)]
    frames = []
    for place, number in enumerate(at):
        picture = Image.fromarray(footage.frames_THWC[number]).resize((width * 4, height * 4) if width < 160 else (width, height))
        draw, by = ImageDraw.Draw(picture), picture.width / width
        found = said[place].box if place < len(said) else None
        for box, colour, thick in ((true[place], TRUE, 3), (found, SAID, 1)):  # equal ones are both visible
            if box is not None:
                corners = [v * by for v in _displayed(box, prompt.meta, (width, height))]
                draw.rectangle(corners, outline=colour, width=thick * max(2, picture.width // 200))
        frames.append(picture)
    return filmstrip(_footage(frames, times, footage.duration_s), most=len(frames))


def _corners(answer: Sequence[Any]) -> list[tracks.Box]:
    found = [next((one[key] for key in tracks.KEYS if key in one), None) if isinstance(one, Mapping) else one for one in answer]
    return [(float(a), float(b), float(c), float(d)) for a, b, c, d in found]  # type: ignore[misc]


def _displayed(box: tracks.Box, meta: Mapping[str, Any], size: tuple[int, int]) -> Sequence[float]:
    """The corners of a box of an answer in pixels of frames of this size. Pixels of an answer are those of `meta["size"]`."""
    frame = CoordinateFormat(meta.get("answer_frame", "pixels"))
    unit: Sequence[float] = convert_coordinates(box, frame, CoordinateFormat.UNIT, meta.get("size", size))
    return convert_coordinates(unit, CoordinateFormat.UNIT, CoordinateFormat.PIXELS, size)


def _footage(frames: Sequence[Image], times: Sequence[float], duration_s: float) -> VideoFrames:
    import numpy as np

    stacked = np.stack([np.asarray(one) for one in frames])
    return replace(
        VideoFrames(frames_THWC=stacked, times_s=tuple(times), duration_s=max(duration_s, times[-1])), name="what was said"
    )

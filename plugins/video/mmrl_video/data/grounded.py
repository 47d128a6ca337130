"""`video/grounded-data`: which option is right, and when it can be seen, in your own clips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl import Prompt, UserError, user_message
from mmrl.api.errors import display_path, shorten
from mmrl.api.tasks.option_checks import check_type
from mmrl.api.tasks.tables import read_json
from mmrl_video.data import published, times
from mmrl_video.data.files import Folder
from mmrl_video.data.questions import question
from mmrl_video.data.task import ClipData, length_of
from mmrl_video.drawn.task import STYLES, asked, means

SPAN_KEYS = ("glue", "segments", "spans", "span", "timestamp", "location")
WHAT = "the letter and the time in seconds, as LETTER START to END"


@dataclass(kw_only=True, eq=False)
class GroundedData(ClipData):
    """An answer, and the time in which it can be seen: VideoChat-R1's JSON of NExT-GQA, NExT-GQA itself, your own."""

    segments: str | None = None
    """NExT-GQA's JSON of times (`gsub_val.json`), by clip and `qid`, for tables without times in their rows."""

    styles = (*STYLES, "videochat-r1")

    def __post_init__(self) -> None:
        self._times: Mapping[str, Any] = {}
        if self.segments is not None:
            check_type("segments", self.segments, str, '"gsub_val.json"')
            self._times = _segments(self.segments)
        super().__post_init__()

    def pose(self, row: dict[str, Any], id: str, folder: Folder) -> Prompt:
        found = question(row, id, self.seed)
        if not found.options:
            raise ValueError("it is a question without options")
        given = times.spans_in(self._with_times(row), SPAN_KEYS)
        path = folder.find(found.clip if self.file is None else self.clip_of(row))
        duration = length_of(path, row).duration_s
        spans = times.checked(given, duration)
        meta: dict[str, Any] = {
            "style": "short" if self.style == "short" else "tags",
            "asks": "grounded-choice",
            "options": list(found.options),
            "spans": spans,
            "unit_s": 1.0,
            "duration": round(duration, 3),
            **found.more,
        }
        pairs = ", ".join(f"({start:.12g}, {end:.12g})" for start, end in spans)
        if self.style in STYLES:
            meta["said"] = f"{found.answer} {times.written(spans)}"
        else:
            meta |= {"said": found.answer, "glue": f"[{pairs}]"}
        answer = {"answer": found.answer, "glue": [list(span) for span in spans]}
        clip = self.clip(path)
        if self.style == "videochat-r1":
            message = published.text_first(published.VIDEOCHAT_R1_GQA.format(found.text, found.listed), clip)
        else:
            listed = "\n".join(found.listed)
            message = user_message(asked(f"{found.text}\n{listed}", WHAT, self.style, self.prompt), clip)
        return Prompt(id=id, messages=[message], answer=answer, meta=meta)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean for each type of row, if there are several."""
        return {**means(results, "type"), **self.column_figures(results)}

    def _with_times(self, row: dict[str, Any]) -> dict[str, Any]:
        if not self._times:
            return row
        video, number = str(self.clip_of(row)), str(row.get("qid"))
        about = self._times.get(video)
        found = about.get("location", {}).get(number) if isinstance(about, Mapping) else None
        if not found:
            raise ValueError(f"segments has no times of video {video!r:.40}, qid {number!r:.20}")
        return {**row, "segments": found}


def _segments(path: str) -> Mapping[str, Any]:
    try:
        found = read_json(Path(path).expanduser())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"segments = {display_path(path)!r} can't be read ({shorten(error, 100)}): give NExT-GQA's JSON"
        ) from error
    if not isinstance(found, dict) or not found:
        raise UserError(f"segments = {display_path(path)!r} is not an object of videos: give NExT-GQA's JSON")
    return found

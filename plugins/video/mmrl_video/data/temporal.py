"""`video/temporal-data`: when something happens in your own clips."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl import Prompt, user_message
from mmrl.api.tasks.option_checks import check_choice, check_type
from mmrl_video.data import published, times
from mmrl_video.data.files import Folder, known
from mmrl_video.data.tables import first, text_of
from mmrl_video.data.task import ClipData, length_of
from mmrl_video.drawn.task import STYLES, asked, means
from mmrl_video.metrics import grounding_figures

SENTENCE_KEYS = ("sentence", "query", "caption", "description", "question", "problem")
TIME_KEYS = ("timestamp", "timestamps", "span", "spans", "segments", "interval", "relevant_windows", "solution", "answer")
TYPE_KEYS = ("type", "source", "dataset_name", "dataset")
KEYS = 'Give the seconds as {"start_time": "START", "end_time": "END"}.'
"""Instructions for Temporal-R1's format, for rows without a `problem`."""
WHAT = {
    "span": "its start and its end in seconds, as START to END",
    "spans": "the start and the end of each time that it does, in seconds, as START to END, START to END",
}


@dataclass(kw_only=True, eq=False)
class TemporalData(ClipData):
    """A sentence, and the time in which it is true: Charades-STA, ActivityNet Captions, Time-R1's and TimeZero's, your own."""

    times: str = "seconds"
    """Unit of times in the table: seconds, or parts of the clip."""
    nearest: bool = False
    """Ask for one span, also where a row has several, and compare it with the nearest of them: the R1 of QVHighlights."""

    styles = (*STYLES, "temporal-r1", "timezero", "time-r1", "videochat-r1")

    def __post_init__(self) -> None:
        check_choice("times", self.times, ("seconds", "parts"))
        check_type("nearest", self.nearest, bool)
        super().__post_init__()

    def pose(self, row: dict[str, Any], id: str, folder: Folder) -> Prompt:
        sentence = text_of(row, SENTENCE_KEYS)
        if not sentence:
            raise ValueError(f"it has no sentence under any of {', '.join(SENTENCE_KEYS)}")
        given = times.spans_in(row, TIME_KEYS)
        path = folder.find(self.clip_of(row))
        part = times.part_of(row, TIME_KEYS, known(path).duration_s)
        start, end = part or (0.0, length_of(path, row).duration_s)
        duration = end - start
        spans = times.checked(given, duration, duration if self.times == "parts" else 1.0)
        if len(spans) > 1 and self.style not in STYLES:
            raise ValueError(f"it has {len(spans)} spans, and {self.style} needs one")
        asks = "span" if len(spans) == 1 or self.nearest else "spans"
        meta = {
            "style": "short" if self.style == "short" else "tags",
            "asks": asks,
            "spans": spans,
            "unit_s": 1.0,
            "duration": round(duration, 3),
            "said": _said(self.style, spans[:1] if self.nearest else spans),
            "sentence": sentence,
            "type": str(first(row, TYPE_KEYS) or "")[:40],
            **({"nearest": True} if self.nearest else {}),
            **_difficulty(row),
        }
        answer: Any = list(spans[0]) if len(spans) == 1 else [list(s) for s in spans]
        clip = self.clip(path, start_s=start, end_s=end) if part else self.clip(path)
        return Prompt(id=id, messages=self._messages(row, sentence, asks, clip), answer=answer, meta=meta)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Mean IoU, the share with an IoU of at least 0.3, 0.5 and 0.7 (R1@m), and the mean for each type of row, if rows have
        one."""
        return {**grounding_figures([score for _, score in results]), **means(results, "type"), **self.column_figures(results)}

    def _messages(self, row: Mapping[str, Any], sentence: str, asks: str, clip: Any) -> list[Any]:
        if self.style in published.EVENTS:
            return [published.text_first(published.EVENTS[self.style].format(published.event(sentence)), clip)]
        if self.style == "temporal-r1":
            own = row.get("problem")
            text = own.strip() if isinstance(own, str) and own.strip() else f"{_question(sentence)} {KEYS}"
            return [{"role": "system", "content": published.TEMPORAL_R1_SYSTEM}, user_message(text, clip)]
        return [user_message(asked(_question(sentence), WHAT[asks], self.style, self.prompt), clip)]


def _question(sentence: str) -> str:
    return sentence if sentence.endswith("?") else f"When does this happen: {sentence.removesuffix('.')}?"


def _said(style: str, spans: list[times.Span]) -> str:
    if style == "temporal-r1":
        start, end = (f"{v:.12g}" for v in spans[0])
        return json.dumps({"start_time": start, "end_time": end})
    return times.written(spans)


def _difficulty(row: Mapping[str, Any]) -> dict[str, float]:
    """The difficulty of a row, which Time-R1's have."""
    value = row.get("difficulty")
    return {"difficulty": float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else {}

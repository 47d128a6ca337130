"""`video/qa-data`: questions about your own clips, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmrl import Prompt, user_message
from mmrl.api.media.images import load_image
from mmrl.api.tasks.tables import resolve_image
from mmrl_video.data import published
from mmrl_video.data.files import Folder
from mmrl_video.data.questions import Question, question
from mmrl_video.data.task import ClipData, length_of
from mmrl_video.drawn.task import STYLES, asked, means

ASKS = {"multiple choice": "choice", "numerical": "number", "OCR": "text", "free-form": "text", "regression": "number"}
WHAT = {
    "multiple choice": "the letter alone",
    "numerical": "the number alone",
    "OCR": "the text alone",
    "free-form": "a few words",
    "regression": "the number alone",
}


@dataclass(kw_only=True, eq=False)
class QuestionData(ClipData):
    """Questions for an option, a number, a text, an open answer: Video-R1, NExT-QA, SEED-Bench-R1, Video-RTS, your own."""

    styles = (*STYLES, "video-r1", "video-rts", "seed-bench-r1")

    def pose(self, row: dict[str, Any], id: str, folder: Folder) -> Prompt:
        found = question(row, id, self.seed)
        if self.style in ("video-rts", "seed-bench-r1") and not found.options:
            raise ValueError(f"{self.style} is for questions with options, and it is {found.kind}")
        shown, duration = [], 0.0
        if found.clip is not None:
            path = folder.find(found.clip)
            duration = length_of(path, row).duration_s
            shown.append(self.clip(path))
        if found.picture is not None:
            picture = resolve_image("", found.picture, folder.path)
            load_image(picture)  # raise for broken pictures now
            shown.append(picture)
        if not shown:
            raise ValueError("it names no clip and no picture")
        meta = {
            "style": "short" if self.style == "short" else "tags",
            "asks": ASKS[found.kind],
            "problem_type": found.kind,
            "options": list(found.options),
            "said": found.answer,
            "duration": round(duration, 3),
            **found.more,
        }
        return Prompt(id=id, messages=[user_message(self._text(found), *shown)], answer=found.answer, meta=meta)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean for each kind of question, and for each type of row (NExT-QA's CW, TN, ...), if there are several."""
        return {**means(results, "problem_type"), **means(results, "type")}

    def _text(self, found: Question) -> str:
        listed = "\n".join(found.listed)
        if self.style == "video-r1":
            text = f"{found.text}Options:\n{listed}\n" if found.options else found.text
            return published.VIDEO_R1.format(text) + published.VIDEO_R1_KINDS[found.kind]
        text = f"{found.text}\n{listed}\n" if found.options else found.text
        if self.style == "video-rts":
            return published.VIDEO_RTS.format(text)
        if self.style == "seed-bench-r1":
            return published.SEED_BENCH_R1.format(text)
        return asked(text.strip(), WHAT[found.kind], self.style, self.prompt)

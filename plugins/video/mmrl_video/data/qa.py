"""`video/qa-data`: questions about your own clips, by kind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import Prompt, UserError, user_message
from mmrl.api.errors import display_path
from mmrl.api.media.clips import FASTEST, SLOWEST
from mmrl.api.media.images import load_image
from mmrl.api.tasks.option_checks import check_choice, check_type
from mmrl.api.tasks.tables import resolve_image
from mmrl_video.data import published, times
from mmrl_video.data.files import Folder, rate_of
from mmrl_video.data.questions import Question, question
from mmrl_video.data.task import ClipData, length_of
from mmrl_video.drawn.task import STYLES, asked, means
from mmrl_video.metrics import vsi_bench_figures

ASKS = {"multiple choice": "choice", "numerical": "number", "OCR": "text", "free-form": "text", "regression": "number"}
WHAT = {
    "multiple choice": "the letter alone",
    "numerical": "the number alone",
    "OCR": "the text alone",
    "free-form": "a few words",
    "regression": "the number alone",
}

VSI_BENCH = "vsi-bench"


@dataclass(kw_only=True, eq=False)
class QuestionData(ClipData):
    """Questions for an option, a number, a text, an open answer: Video-R1, NExT-QA, SEED-Bench-R1, Video-RTS, your own."""

    part: Sequence[str] = ()
    """The two columns with the start and the end, in seconds, of the part of its file that a row is about; a row without them is
    about all of it."""
    rate: float | None = None
    """Pictures per second of clips that are folders of pictures, where a row has no `fps`; those of MVBench have 3."""
    numbers: str = "numerical"
    """The kind of questions for a number where the row names none: numerical, or regression, as in VSI-Bench."""

    index_column: str = ""
    """The column with the index of the right option, from 0, as in EgoSchema; by default the answer tells it."""
    figures: str = ""
    """Further figures of an evaluation: vsi-bench, the mean over its tasks."""

    styles = (*STYLES, "video-r1", "video-rts", "seed-bench-r1")

    def __post_init__(self) -> None:
        check_choice("figures", self.figures, ("", VSI_BENCH))
        check_choice("numbers", self.numbers, ("numerical", "regression"))
        check_type("index_column", self.index_column, str)
        if (
            not isinstance(self.part, list | tuple)
            or len(self.part) not in (0, 2)
            or not all(isinstance(c, str) for c in self.part)
        ):
            raise UserError(f'part = {self.part!r:.60} must be two columns, such as ["start", "end"]')
        if self.rate is not None and rate_of(self.rate) is None:
            raise UserError(f"rate = {self.rate!r:.60} must be a number from {SLOWEST:g} to {FASTEST}")
        super().__post_init__()
        rows = (row for table in self._tables.values() for row in table.scan(self.part))
        if self.part and not any(row and row.keys() >= set(self.part) for row in rows):
            raise UserError(f"no row of {display_path(self.path)} has the columns {' and '.join(self.part)} of part")

    def pose(self, row: dict[str, Any], id: str, folder: Folder) -> Prompt:
        found = question(row, id, self.seed, self.numbers, self.index_column)
        named = found.clip if self.file is None else self.clip_of(row)
        if self.style in ("video-rts", "seed-bench-r1") and not found.options:
            raise ValueError(f"{self.style} is for questions with options, and it is {found.kind}")
        shown, duration = [], 0.0
        if named is not None:
            path = folder.find(named)
            rate = self._rate(row, path)
            start, end = self._part(row, length_of(path, {} if self.part else row, rate).duration_s)
            duration = end - start
            shown.append(self.clip(path, rate=rate, **({"start_s": start, "end_s": end} if self.part else {})))
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
        own = vsi_bench_figures(results) if self.figures == VSI_BENCH else {}
        return {**means(results, "problem_type"), **means(results, "type"), **self.column_figures(results), **own}

    def _rate(self, row: Mapping[str, Any], path: str) -> float | None:
        """Pictures per second of a clip that is a folder; None for a file."""
        if not os.path.isdir(path):
            return None
        rate = rate_of(row.get("fps")) or self.rate
        if rate is None:
            raise ValueError(f"its clip {display_path(path)} is a folder of pictures: set rate, their number per second")
        return rate

    def _part(self, row: Mapping[str, Any], duration_s: float) -> tuple[float, float]:
        """What a row is about of its file, in seconds."""
        cells = [row.get(column) for column in self.part]
        if not self.part or all(cell in (None, "") for cell in cells):
            return 0.0, duration_s
        return times.checked([cells], duration_s)[0]

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

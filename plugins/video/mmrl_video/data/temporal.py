"""`video/temporal-data`: when something happens in your own clips."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mmrl import NoGold, Prompt, UserError, user_message
from mmrl.api.tasks.option_checks import check_choice, check_type
from mmrl_video.data import published, times
from mmrl_video.data.files import Folder, known
from mmrl_video.data.tables import first, parsed, text_of
from mmrl_video.data.task import ClipData, length_of
from mmrl_video.drawn.task import STYLES, asked, means
from mmrl_video.metrics import grounding_figures
from mmrl_video.qvhighlights import BEST, CLIP_S, clips_precision

SENTENCE_KEYS = ("sentence", "query", "caption", "description", "question", "problem")
TIME_KEYS = ("timestamp", "timestamps", "span", "spans", "segments", "interval", "relevant_windows", "solution", "answer")
TYPE_KEYS = ("type", "source", "dataset_name", "dataset")
KEYS = 'Give the seconds as {"start_time": "START", "end_time": "END"}.'
"""Instructions for Temporal-R1's format, for rows without a `problem`."""
WHAT = {
    "span": "its start and its end in seconds, as START to END",
    "spans": "the start and the end of each time that it does, in seconds, as START to END, START to END",
    "ranked": "the start and the end of up to ten times at which it may, the likeliest first, in seconds, as START to END, "
    "START to END",
}

SCORED_BY = {
    **{"ranked": "video/ap@qvhighlights", "highlight": "video/hit@qvhighlights"},
    "saliency": "video/saliency@qvhighlights",
}
"""Option -> the verifier of what it asks for."""
MOST_CLIPS = 200
"""Clips for which numbers are asked: more would not fit into an answer that is read."""


@dataclass(kw_only=True, eq=False)
class TemporalData(ClipData):
    """A sentence, and the time in which it is true: Charades-STA, ActivityNet Captions, Time-R1's and TimeZero's, your own."""

    times: str = "seconds"
    """Unit of times in the table: seconds, or parts of the clip."""
    nearest: bool = False
    """Ask for one span, also where a row has several, and compare it with the nearest of them: the R1 of QVHighlights."""
    ranked: bool = False
    """Ask for several spans, the likeliest first, also where a row has one, for `video/ap@qvhighlights`, which `verifiers` of the
    task must name. `video/tiou` takes the first, as with `nearest`."""

    highlight: bool = False
    """Ask for the second of the best moment, for `video/hit@qvhighlights`, which `verifiers` of the task must name. Rows need
    `relevant_clip_ids` and `saliency_scores`."""
    saliency: bool = False
    """Ask for a number from 0 to 4 for each two seconds, for `video/saliency@qvhighlights`, which `verifiers` of the task must
    name. Rows need the same, and clips of at most 400 s."""

    styles = (*STYLES, "temporal-r1", "timezero", "time-r1", "videochat-r1")

    def __post_init__(self) -> None:
        check_choice("times", self.times, ("seconds", "parts"))
        check_type("nearest", self.nearest, bool)
        check_type("ranked", self.ranked, bool)
        check_type("highlight", self.highlight, bool)
        check_type("saliency", self.saliency, bool)
        asked_for = [name for name in ("nearest", *SCORED_BY) if getattr(self, name)]
        if len(asked_for) > 1:
            raise UserError(f"{' and '.join(asked_for)} ask for different answers: choose one")
        if asked_for and asked_for[0] in SCORED_BY and self.style not in STYLES:
            raise UserError(f"{asked_for[0]} needs a style of {', '.join(STYLES)}, and {self.style} asks for one span")
        super().__post_init__()

    def pose(self, row: dict[str, Any], id: str, folder: Folder) -> Prompt:
        sentence = text_of(row, SENTENCE_KEYS)
        if not sentence:
            raise ValueError(f"it has no sentence under any of {', '.join(SENTENCE_KEYS)}")
        if self.highlight or self.saliency:
            return (self._best_moment if self.highlight else self._rated)(row, sentence, id, folder)
        given = times.spans_in(row, TIME_KEYS)
        path = folder.find(self.clip_of(row))
        part = times.part_of(row, TIME_KEYS, known(path).duration_s)
        start, end = part or (0.0, length_of(path, row).duration_s)
        duration = end - start
        spans = times.checked(given, duration, duration if self.times == "parts" else 1.0)
        if len(spans) > 1 and self.style not in STYLES:
            raise ValueError(f"it has {len(spans)} spans, and {self.style} needs one")
        asks = "spans" if self.ranked or (len(spans) > 1 and not self.nearest) else "span"
        meta = {
            "style": "short" if self.style == "short" else "tags",
            "asks": asks,
            "spans": spans,
            "unit_s": 1.0,
            "duration": round(duration, 3),
            "said": _said(self.style, spans[:1] if self.nearest else spans),
            "sentence": sentence,
            "type": str(first(row, TYPE_KEYS) or "")[:40],
            **({"nearest": True} if self.nearest else {"ranked": True} if self.ranked else {}),
            **_difficulty(row),
        }
        answer: Any = list(spans[0]) if len(spans) == 1 else [list(s) for s in spans]
        clip = self.clip(path, start_s=start, end_s=end) if part else self.clip(path)
        messages = self._messages(row, sentence, "ranked" if self.ranked else asks, clip)
        return Prompt(id=id, messages=messages, answer=answer, meta=meta)

    def _best_moment(self, row: Mapping[str, Any], sentence: str, id: str, folder: Folder) -> Prompt:
        """The prompt of `highlight`."""
        path = folder.find(self.clip_of(row))
        duration = length_of(path, row).duration_s
        scores = {str(clip): max(own) for clip, own in _scores(row).items()}
        best = max(scores, key=lambda clip: scores[clip])
        meta = {
            "style": self.style,
            "asks": "number",
            "duration": round(duration, 3),
            "said": str(int(best) * CLIP_S + CLIP_S // 2),
            "sentence": sentence,
            "type": str(first(row, TYPE_KEYS) or "")[:40],
        }
        question = f"Which moment shows this best: {sentence.removesuffix('.')}?"
        message = user_message(asked(question, "its time in seconds alone", self.style, self.prompt), self.clip(path))
        return Prompt(id=id, messages=[message], answer=scores, meta=meta)

    def _rated(self, row: Mapping[str, Any], sentence: str, id: str, folder: Folder) -> Prompt:
        """The prompt of `saliency`. Clips are counted by the row's duration, which a file may miss by a few milliseconds."""
        path, scores = folder.find(self.clip_of(row)), _scores(row)
        duration = length_of(path, row).duration_s
        count = int((row["duration"] if isinstance(row.get("duration"), int | float) else duration) / CLIP_S)
        if not max(scores) < count <= MOST_CLIPS or len({len(own) for own in scores.values()}) > 1:
            raise ValueError(
                f"it has {count} clips of {CLIP_S} s, with scores up to clip {max(scores)}: there may be {MOST_CLIPS}, with "
                "scores of the same annotators"
            )
        none = [0] * len(next(iter(scores.values())))
        answer = [scores.get(clip, none) for clip in range(count)]
        meta = {
            "style": self.style,
            "asks": "ratings",
            "duration": round(duration, 3),
            "said": ", ".join(f"{sum(own) / len(own):.3g}" for own in answer),
            "sentence": sentence,
            "type": str(first(row, TYPE_KEYS) or "")[:40],
        }
        question = f"How well does each {CLIP_S} seconds of the video show this: {sentence.removesuffix('.')}?"
        what = f"{count} numbers from 0, not at all, to {BEST}, very well, in the order of the video, separated by commas"
        message = user_message(asked(question, what, self.style, self.prompt), self.clip(path))
        return Prompt(id=id, messages=[message], answer=answer, meta=meta)

    def gold(self, prompt: Prompt) -> str:
        """As `ClipData.gold`. Raises NoGold for a moment where no clip is very good, which no answer can hit, and, with
        `saliency`, where annotators differ in which are, so that no answer is right for all."""
        if self.highlight and max(prompt.answer.values()) < BEST:
            raise NoGold("no clip of it is very good")
        if self.saliency and clips_precision([sum(own) for own in prompt.answer], prompt.answer, BEST) < 1:
            raise NoGold("its annotators call different clips very good")
        return super().gold(prompt)

    @property
    def scored_by(self) -> str:
        return next((verifier for option, verifier in SCORED_BY.items() if getattr(self, option)), "")

    def check_verifiers(self, verifiers: Collection[str]) -> None:
        for option, needed in SCORED_BY.items():
            if getattr(self, option) and needed not in verifiers:
                raise UserError(
                    f"{option} = true asks for what {needed} scores, and not {' or '.join(verifiers)}: write "
                    f'verifiers = {{"{needed}" = 1.0}} into its [[tasks]] entry'
                )

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Mean IoU, the share with an IoU of at least 0.3, 0.5 and 0.7 (R1@m), and the mean for each type of row, if rows have
        one. With an option of `SCORED_BY` a score needn't be an IoU, and only the last is there."""
        ious = {} if any(getattr(self, option) for option in SCORED_BY) else grounding_figures([score for _, score in results])
        return {**ious, **means(results, "type"), **self.column_figures(results)}

    def _messages(self, row: Mapping[str, Any], sentence: str, asks: str, clip: Any) -> list[Any]:
        if self.style in published.EVENTS:
            return [published.text_first(published.EVENTS[self.style].format(published.event(sentence)), clip)]
        if self.style == "temporal-r1":
            own = row.get("problem")
            text = own.strip() if isinstance(own, str) and own.strip() else f"{_question(sentence)} {KEYS}"
            return [{"role": "system", "content": published.TEMPORAL_R1_SYSTEM}, user_message(text, clip)]
        return [user_message(asked(_question(sentence), WHAT[asks], self.style, self.prompt), clip)]


def _scores(row: Mapping[str, Any]) -> dict[int, list[int]]:
    """Clip, from 0, -> the scores that annotators gave it. Raises ValueError for a row without scores."""
    clips, scores = (parsed(row.get(key)) for key in ("relevant_clip_ids", "saliency_scores"))
    if not isinstance(clips, list) or not isinstance(scores, list) or not clips or len(clips) != len(scores):
        raise ValueError("it has no relevant_clip_ids with as many saliency_scores")
    found = {}
    for clip, own in zip(clips, scores, strict=True):
        if type(clip) is not int or clip < 0 or not isinstance(own, list) or not own or not all(_is_score(v) for v in own):
            raise ValueError(f"the scores of its clip {clip!r:.40} are {own!r:.60} and not numbers from 0 to {BEST}")
        found[clip] = own
    return found


def _is_score(value: Any) -> bool:
    return type(value) is int and 0 <= value <= BEST


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

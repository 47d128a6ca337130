"""Questions about clips from rows: Video-R1's, NExT-QA's, SEED-Bench-R1's, Video-RTS's, your own tables.

All are converted to one form, so that tasks need not know the formats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrl.api.tasks.image_sources import chance
from mmrl.api.verifiers.parse import first_tag as in_tag
from mmrl_video import reading
from mmrl_video.data.tables import CLIP_KEYS, first, parsed, text_of

KINDS = ("multiple choice", "numerical", "OCR", "free-form", "regression")
"""Video-R1's types of problem."""
_ALSO = {
    **{kind.lower(): kind for kind in KINDS},
    **{"multiple-choice": KINDS[0], "choice": KINDS[0], "number": KINDS[1], "text": KINDS[2], "open": KINDS[3]},
}
QUESTION_KEYS = ("question", "problem", "Question")
ANSWER_KEYS = ("solution", "answer", "ground_truth", "correct_choice", "Answer")
OPTION_KEYS = ("options", "option", "choices", "candidates", "Options")
TYPE_KEYS = ("type", "level", "question_type", "task_type", "category", "domain")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_OPTION = re.compile(r"\(?([A-Z])[.):]\s*(\S|\S.*\S)")
"""An option with its letter, which TempCompass has without a blank in two questions: `C.Both events`."""
_NAMED = re.compile(r"(?:Option|Caption|Sentence) ([A-Z1-9]):\s+(.*\S)")
"""An option of TempCompass' caption matching, `Option 1: ...`; its answers are such lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question of a row."""

    text: str
    kind: str
    """Of `KINDS`."""
    answer: str
    """The letter of the right option, or the answer's text."""
    options: tuple[str, ...] = ()
    """Without their letters."""
    clip: Any = None
    """The row's name for the clip."""
    picture: Any = None
    """A picture in addition to the clip, or instead of it."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further values; metrics are grouped by `type`."""

    @property
    def listed(self) -> list[str]:
        """`A. a dog`, ..."""
        return [f"{letter}. {option}" for letter, option in zip(LETTERS, self.options, strict=False)]


def question(row: Mapping[str, Any], id: str, seed: int, numbers: str = "numerical", index_column: str = "") -> Question:
    """A row's question. seed and id shuffle the options if the row has a right answer and wrong ones. numbers: the kind of a
    question for a number if the row names none. index_column: the column with the index of the right option, from 0.

    Raises ValueError for an unusable row.
    """
    text = text_of(row, QUESTION_KEYS) if not _has_lines(row) else str(first(row, QUESTION_KEYS)).strip()
    if not text:
        raise ValueError(f"it has no question under any of {', '.join(QUESTION_KEYS)}")
    given = row[index_column] if index_column else first(row, ANSWER_KEYS)
    if given is None or isinstance(given, list | dict | bool):
        raise ValueError(f"its answer is {given!r:.60}: it must be a text or a number, under {' or '.join(ANSWER_KEYS)}")
    said = str(given)
    tagged = in_tag(said)
    answer = (said if tagged is None else tagged).strip()
    options, index = _options(row, answer, id, seed)
    if index_column:
        index = _index(answer, index_column)
    if not options:
        text, options = _inside(text)
        if options and (named := _NAMED.fullmatch(answer)):
            answer = named[2]
    kind = _kind(row, answer, options, numbers)
    if kind == KINDS[0]:
        answer = _letter(answer, options, index)
    elif kind in ("numerical", "regression") and reading.value(answer) is None:
        raise ValueError(f"its answer {answer!r:.60} is not one number")
    elif not answer:
        raise ValueError("its answer is empty")
    clip, picture = _media(row)
    more = {"type": str(first(row, TYPE_KEYS) or "")[:40]}
    return Question(
        text=text,
        kind=kind,
        answer=answer,
        options=tuple(options) if kind == KINDS[0] else (),
        clip=clip,
        picture=picture,
        more=more,
    )


def _index(text: str, column: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 3):
        raise ValueError(f"{column} is {text!r:.40}, not the index of an option, from 0")
    return int(text)


def _has_lines(row: Mapping[str, Any]) -> bool:
    text = first(row, QUESTION_KEYS)
    return isinstance(text, str) and "\n" in text.strip()


def _options(row: Mapping[str, Any], answer: str, id: str, seed: int) -> tuple[list[str], int | None]:
    """(the options without their letters, the index of the right one if the row's form has it)."""
    if row.get("a0") not in (None, ""):  # NExT-QA
        listed = [str(row[f"a{i}"]) for i in range(26) if row.get(f"a{i}") not in (None, "")]
        return listed, int(answer) if answer.isdecimal() and len(answer) < 3 else None
    if row.get("negative_answers") is not None and row.get("golden_choice_idx") is None:  # SEED-Bench-R1's training rows
        draw = chance(seed, "options", id)
        wrong = [str(one) for one in parsed(row["negative_answers"])]
        return draw.sample([answer, *(shown := draw.sample(wrong, min(3, len(wrong))))], len(shown) + 1), None
    if row.get("choice_a") not in (None, ""):  # SEED-Bench-R1's other rows
        return [str(row[f"choice_{c}"]) for c in "abcdefgh" if row.get(f"choice_{c}") not in (None, "")], None
    listed = parsed(first(row, OPTION_KEYS))
    if listed is None and row.get("option0") not in (None, ""):  # LongVideoBench's rows in Parquet
        listed = [text for i in range(26) if (text := row.get(f"option{i}")) not in (None, "", "N/A")]
    if listed in (None, []):
        return [], None
    if isinstance(listed, Mapping):
        listed = [f"{letter}. {text}" for letter, text in listed.items()]
    if not isinstance(listed, list) or not all(isinstance(one, str | int | float) and str(one).strip() for one in listed):
        raise ValueError(f"its options are {listed!r:.60} and not a list of texts")
    right = row.get("correct_choice")  # LongVideoBench: an index
    return _bare([str(one).strip() for one in listed]), right if type(right) is int else None


def _bare(options: Sequence[str]) -> list[str]:
    """Options without their letters, if all have one."""
    found = [_OPTION.fullmatch(one) for one in options]
    if all(match and match[1] == letter for match, letter in zip(found, LETTERS, strict=False)):
        return [match[2] for match in found if match]
    return list(options)


def _inside(text: str) -> tuple[str, list[str]]:
    """(a question, the options in the lines after it), in Video-RTS's form or in TempCompass'."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    for at in range(1, len(lines) - 1):
        for form, signs in ((_OPTION, LETTERS), (_NAMED, LETTERS), (_NAMED, "123456789")):
            found = [form.fullmatch(line) for line in lines[at:]]
            if all(match and match[1] == sign for match, sign in zip(found, signs, strict=False)):
                return "\n".join(lines[:at]), [match[2] for match in found if match]
    return text, []


def _kind(row: Mapping[str, Any], answer: str, options: Sequence[str], numbers: str) -> str:
    said = str(row.get("problem_type") or "").strip().lower()
    if said:
        if said not in _ALSO:
            raise ValueError(f"its problem_type is {said!r:.40}: known are {', '.join(KINDS)}")
        return _ALSO[said]
    if options:
        return KINDS[0]
    return numbers if reading.value(answer) is not None and len(answer.split()) == 1 else KINDS[3]


def _letter(answer: str, options: Sequence[str], index: int | None) -> str:
    if not 2 <= len(options) <= len(LETTERS):
        raise ValueError(f"it is a question with options and has {len(options)}: give 2 to {len(LETTERS)}")
    if len({one.casefold() for one in options}) < len(options):
        raise ValueError("two of its options are the same")
    places = [index] if index is not None else [i for i, option in enumerate(options) if option.strip() == answer]
    if not places:
        letter = reading.letter(answer, options)
        places = [LETTERS.index(letter)] if letter else []
    if len(places) != 1 or not 0 <= places[0] < len(options):
        raise ValueError(f"its answer {answer!r:.60} is not one of its {len(options)} options, nor the letter of one")
    return LETTERS[places[0]]


def _media(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """(the clip, the picture) that a row names."""
    if row.get("current_observation_basename"):  # SEED-Bench-R1: the progress so far, and the current observation
        source = row.get("video_source")
        steps = parsed(row.get("task_progress_metadata"))
        clip = f"videos/{source}/{row['video_basename']}" if steps and row.get("video_basename") else None
        return clip, f"images/{source}/{row['current_observation_basename']}"
    named = first(row, CLIP_KEYS)
    return (None, named) if row.get("data_type") == "image" else (named, row.get("image"))

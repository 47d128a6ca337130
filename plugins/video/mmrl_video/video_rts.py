"""The rewards of Video-RTS, as published, faults included (github.com/Ziyang412/Video-RTS, commit 432fb5e).

Wang et al. 2025, "Video-RTS: Rethinking Reinforcement Learning and Test-Time Scaling for Efficient and Enhanced Video Reasoning".
"""

from __future__ import annotations

import re

from mmrl import Case
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import first_tag

_PHRASES = (re.compile("final answer", re.IGNORECASE), re.compile("correct answer", re.IGNORECASE))
_COLON = re.compile(r":\s*([A-Za-z])", re.IGNORECASE)
_LETTER = re.compile(r"\s*([A-Za-z])")
_BETWEEN = re.compile(r"</think>\s*<answer>")


def letter(case: Case) -> float:
    """Video-RTS's accuracy: math-verify finds the truth in the completion, or the letter is the truth's.

    The letter is the first of the first `<answer>`; without a tag that behind "final answer ...:", else behind "correct answer
    ...:", else the first of the whole text. Case is ignored. A text that doesn't begin with a letter is compared as a whole.
    Known exploits, as published: prose that begins with the letter is right, "A person walks" and "Apple" for A.
    """
    text = "" if case.answer is None else str(case.answer)
    if mathematics.answers_match(case.completion, text):
        return 1.0
    tagged = first_tag(text)
    wanted = (text if tagged is None else tagged).strip()
    return float(_letter(_said(case.completion)) == _letter(wanted))


def form(case: Case) -> float:
    """`<think>.*?</think>\\s*<answer>.*?</answer>` matches the beginning of the completion, line breaks included.

    Known exploits, as published: any text may follow, and empty blocks pass.
    """
    between = _BETWEEN.search(case.completion, len("<think>")) if case.completion.startswith("<think>") else None
    return float(between is not None and "</answer>" in case.completion[between.end() :])


def _said(text: str) -> str:
    given = first_tag(text)
    if given is not None:
        return given.strip()
    return next((found for phrase in _PHRASES if (found := _behind(phrase, text))), None) or _letter(text)


def _behind(phrase: re.Pattern[str], text: str) -> str | None:
    r"""The letter that `phrase.*?:\s*([A-Za-z])` finds, `.` taking no line break, in linear time: only the first phrase of a line
    can lead to one."""
    found, line_end = None, -1
    for match in phrase.finditer(text):
        if match.start() < line_end:
            continue
        end = text.find("\n", match.end())
        line_end = len(text) if end < 0 else end
        if found is None or found.start() < match.end():
            found = _COLON.search(text, match.end())
        if found is None:
            return None
        if found.start() < line_end:
            return found[1]
    return None


def _letter(text: str) -> str:
    found = _LETTER.match(text)
    return found[1].upper() if found else text.strip().upper()

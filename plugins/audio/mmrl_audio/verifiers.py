"""Our verifier for questions with options about sounds."""

from __future__ import annotations

import re
from typing import Any

from mmrl import Case, Score
from mmrl.api.verifiers.parse import nfc, short_answer

LONGEST, SEARCHED = 400, 20_000
"""Most characters of an answer; characters of a completion in which tags are looked for."""
_TAG = re.compile(r"<answer>(.*)</answer>", re.DOTALL)


def choice(case: Case) -> Score:
    """1 for the text of the right option, whatever its capitals, with a full stop or without. Unlike in `audio/accuracy@r1-aqa`,
    "Dog." is right for "dog". The answer stands in the one answer tag, after the thought if there is one; if `meta["style"]` is
    plain, it is the completion.

    Known exploits: one of n options is right by chance. An answer that lists several options, or says more, is wrong.
    """
    text, why = short_answer(case.completion, case.meta.get("style") != "plain", LONGEST, SEARCHED)
    if text is None:
        return Score(0.0, detail=why)
    said, options = plain(text), case.meta.get("options", ())
    if said == plain(right_option(case.answer)):
        return Score(1.0, detail=f"chose {said[:60]!r}")
    known = any(said == plain(str(option)) for option in options)
    return Score(0.0, detail=f"chose {said[:60]!r}" if known else f"no option: {said[:60]!r}")


def right_option(answer: Any) -> str:
    """The text of the right option; of R1-AQA's solutions, what stands in the tag."""
    tagged = _TAG.fullmatch(str(answer))
    return tagged[1] if tagged else str(answer)


def plain(text: str) -> str:
    """Without case, repeated blanks and a final full stop."""
    return " ".join(nfc(text).casefold().split()).removesuffix(".").rstrip()

"""Verifiers for self-supervised questions about pictures.

An answer is read from the one `<answer>` tag after the thinking; if the prompt requested no tags (`meta["tags"] = False`), a
completion without tags is the answer as a whole.
"""

from __future__ import annotations

import re

from mmrl import Case, Score
from mmrl.api.verifiers.parse import short_answer

LONGEST = 200
"""Maximum of characters of an answer; every right one is shorter."""
_UNIT = re.compile(r"(?:°|degrees?)$")


def exact(case: Case) -> Score:
    """1 when the answer is one of those allowed, else 0.

    `case.answer` is a text, or a list of texts of which each is right. Case, outer blanks, one full stop at the end, and "°" or
    "degrees" after a number are ignored; a blank stands for a hyphen, so that "top left" is "top-left".
    Known exploits: none known; an answer that names several is wrong.
    """
    found, why = given(case)
    if found is None:
        return Score(0.0, detail=why)
    allowed = [case.answer] if isinstance(case.answer, str) else list(case.answer)
    return Score(float(normalise(found) in map(normalise, map(str, allowed))), detail=f"read {found.strip()!r:.60}")


def angle(case: Case) -> Score:
    """1 for the right angle in degrees, falling to 0 for one that is 90 degrees off or more, the shorter way round.

    For rotations in small steps. The answer is one whole number; 360 is 0, and -90 is 270.
    Known exploits: the middle of a narrow choice of angles is never far off; over a full turn every fixed answer earns the same.
    """
    found, why = given(case)
    if found is None:
        return Score(0.0, detail=why)
    text = normalise(found)
    if not re.fullmatch(r"[-+]?[0-9]{1,4}", text):
        return Score(0.0, detail=f"{found.strip()!r:.60} is no whole number of degrees")
    off = abs(int(text) - int(case.answer)) % 360
    return Score(max(0.0, 1 - min(off, 360 - off) / 90), detail=f"{min(off, 360 - off)} degrees off")


def normalise(text: str) -> str:
    plain = " ".join(text.split()).removesuffix(".").casefold()
    return _UNIT.sub("", plain).strip().replace(" ", "-")


def given(case: Case) -> tuple[str | None, str]:
    """See `short_answer`."""
    return short_answer(case.completion, case.meta.get("tags", True), LONGEST, 100 * LONGEST)

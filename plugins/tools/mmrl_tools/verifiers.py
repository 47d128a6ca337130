"""Our verifier of the last answer of an episode."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from mmrl import Case, Score
from mmrl.api.verifiers.parse import nfc, parse_number, short_answer

MAX_ANSWER = 400
"""Maximum of characters of an answer."""
_EDGES = " \t\n\r.,;:!\"'`*()[]"


def answer(case: Case) -> Score:
    """1 if the last turn gives the answer, or one of the accepted ones: the same number, the same words whatever their case, or
    of a choice (`meta["options"]`) its letter or its text. It stands in the one answer tag; in the style `plain` the turn may
    be the answer itself.

    Known exploits: one of n options is right by chance, whether a tool was used or not.
    """
    text, why = short_answer(case.completion, case.meta.get("style") != "plain", MAX_ANSWER, len(case.completion))
    if text is None:
        return Score(0.0, detail=why)
    right = matches(text, case.answer, case.meta.get("options", ()))
    return Score(float(right), detail=f"answered {text.strip()[:60]!r}")


def matches(text: str, truth: Any, options: Sequence[str] = ()) -> bool:
    """Whether a short text is the answer. truth: a text, a number, or a list of accepted ones; of a choice, the letter."""
    accepted = truth if isinstance(truth, list | tuple) else [truth]
    if options:
        letters = {chr(ord("A") + i): str(option) for i, option in enumerate(options)}
        right = str(accepted[0]).strip().upper()
        if plain(text) == plain(letters[right]):
            return True
        said = re.match(r"[(\[]?([A-Za-z])[)\].:]?(?=\s|$)", text.strip())
        if said and (letter := said[1].upper()) in letters:
            rest = plain(text.strip()[said.end() :])
            return letter == right and rest in ("", plain(letters[letter]))
        return False
    return any(_same(text, str(one)) for one in accepted)


def letter_of(answer: Any, options: Sequence[str]) -> str:
    """The letter of the right option. answer: the letter or the option's text. Raises ValueError if it is none of them."""
    texts = [plain(str(option)) for option in options]
    given = str(answer).strip()
    if plain(given) in texts:
        return chr(ord("A") + texts.index(plain(given)))
    if len(given) == 1 and 0 <= ord(given.upper()) - ord("A") < len(options):
        return given.upper()
    raise ValueError(f"the answer {given!r:.60} is none of the {len(options)} options, nor a letter of one")


def _same(text: str, truth: str) -> bool:
    one, other = parse_number(text), parse_number(truth)
    if one is not None and other is not None:
        return abs(one - other) <= 1e-9 * max(1.0, abs(other))
    return bool(plain(text)) and plain(text) == plain(truth)


def plain(text: str) -> str:
    """Words without case, edges and repeated blanks."""
    folded = nfc(text).casefold().strip(_EDGES)
    return " ".join("".join(" " if unicodedata.category(c) == "Zs" else c for c in folded).split())

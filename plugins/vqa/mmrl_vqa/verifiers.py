"""Our verifiers for questions: one answer, compared by its kind.

The answer stands behind the thinking, if there is any: in the one `<answer>` tag; if `meta["style"]` is `plain`, all of it, and
if it is `boxed` or `described`, in the last `\\boxed{}`. Completions may be hostile: every
function here is linear in their length, or bounds it first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from mmrl import Case, Score
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import NUMBER, nfc, only_answer, parse_number, parse_numbers, without_thinking
from mmrl_vqa.easyr1 import boxed
from mmrl_vqa.formulas import formula

KINDS = ("choice", "number", "math", "yes-no", "text")
MAX_ANSWER = 400
"""Maximum of characters of an answer, unless the truth itself is longer."""
MAX_WORDS = 8
"""Maximum of words around a number: a unit, "about", "apples on the table"."""
ENOUGH = 3
"""Votes of annotators that make an answer fully right (VQA, Antol et al. 2015)."""
UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_LEAD = re.compile(
    r"(?:(?:the |my )?(?:(?:final|correct|best|right) )?(?:answer|option|choice|letter)(?: is)? ?:? ?)?", re.IGNORECASE
)
_LETTER = re.compile(r"[(\[*]*([A-Z])[)\]*]*[.:,)]?(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_FRACTION = re.compile(r"([-+\u2212]?[0-9]{1,15}) ?/ ?([0-9]{1,15})")
_SQUARED = re.compile(r"\b(mm|cm|dm|km|m|in|ft|yd|mi)(?:\^\{?[23]\}?|[23\u00b2\u00b3])(?!\w)")
_WORD = re.compile(r"[^\W\d_]+")
_ARTICLES = frozenset(("a", "an", "the"))


def answer(case: Case) -> Score:
    """Compares by the kind of the question: `meta["kind"]`, one of choice, number, math, yes-no, text (the default).

    Known exploits: those of the function for the kind.
    """
    kind = case.meta.get("kind", "text")
    if kind not in BY_KIND:
        raise ValueError(f"meta['kind'] is {kind!r}: it must be one of {', '.join(KINDS)}")
    return BY_KIND[kind](case)


def choice(case: Case) -> Score:
    """1 for the letter of the right option, and only for a letter: "B", "(b)", "B.", "The answer is B", "B. a red square" if that
    is the option's text in `meta["options"]`.

    Known exploits: one of n letters is right by chance. Two letters, or a letter and other words, are no answer.
    """
    text, why = given(case)
    if text is None:
        return Score(0.0, detail=why)
    found, options = letter(text, case.meta.get("options", ())), case.meta.get("options", ())
    if found is None:
        return Score(0.0, detail=f"no single letter: {text[:60]!r}")
    if options and ord(found) - ord("A") >= len(options):
        return Score(0.0, detail=f"{found} is no option")
    return Score(float(found == letter(_truth(case), options)), detail=f"chose {found}")


def letter(text: str, options: Sequence[str] = ()) -> str | None:
    """The one letter that a text chooses, a capital; None for any other text."""
    plain = " ".join(text.split())
    if len(plain) > MAX_ANSWER:
        return None
    lead = _LEAD.match(plain)
    match = _LETTER.fullmatch(plain[lead.end() if lead else 0 :])
    if not match or not match[1].isascii():  # the long s and the kelvin sign have capitals in A to Z
        return None
    found, rest = match[1].upper(), match["rest"].strip()
    place = ord(found) - ord("A")
    named = place < len(options) and match.start("rest") > match.end(1) and same(rest, str(options[place]))
    return found if not rest or named else None


def number_(case: Case, relative: float | None = None, absolute: float | None = None) -> Score:
    """1 for the number, within the tolerance: "12", "1,200 km", "$3.50", "about 7 apples", "3/4", "seven". One number only, and
    few words around it; units are not compared. Unlike in `transit/answer`, which takes the bare number alone,
    "two" and "2 lines" are 2.

    relative: relative tolerance, by default `meta["relative"]`, or 0. absolute: absolute tolerance.
    Known exploits: the unit is not read, so "12 m" is right for 12 cm; a small count is right by chance.
    """
    text, why = given(case)
    if text is None:
        return Score(0.0, detail=why)
    found, truth = value(text), value(_truth(case))
    if truth is None:
        raise ValueError(f"the answer {_truth(case)!r:.60} of a question of kind number is not a number")
    if found is None:
        return Score(0.0, detail=f"no single number: {text[:60]!r}")
    share = float(case.meta.get("relative", 0.0) if relative is None else relative)
    room = max(float(case.meta.get("absolute", 0.0) if absolute is None else absolute), (share + 1e-9) * abs(truth))
    return Score(float(abs(found - truth) <= room), detail=f"answered {found:g}")


def value(text: str) -> float | None:
    """The one number of a text; None if there is none, more than one, or also a yes or no."""
    if len(text) > MAX_ANSWER:
        return None
    plain = _SQUARED.sub(r"\1", " ".join(text.split()).replace("\\$", "$").replace("\\%", "%"))
    if match := _FRACTION.fullmatch(plain.strip("$. ")):
        below = int(match[2])
        return int(match[1].replace("\u2212", "-")) / below if below else None
    if plain.casefold().strip(". ") in UNITS:
        return float(UNITS.index(plain.casefold().strip(". ")))
    if (whole := parse_number(plain)) is not None:
        return whole
    if {"yes", "no"} & {w.casefold() for w in _WORD.findall(plain)}:
        return None
    found = parse_numbers(plain)
    # a number in a word (x1), in brackets, or too large for a float also counts as a number, but can't be read
    if len(found) != 1 or len(NUMBER.findall(plain)) != 1 or re.search(r"\d", NUMBER.sub(" ", plain)):
        return None
    return found[0] if len(plain.split()) <= MAX_WORDS and not re.search(r"[\[{<>=|\\]", plain) else None


def math(case: Case) -> Score:
    """1 for what math-verify calls equal to the truth: "1/2", "0.5" and "\\frac{1}{2}", "x^2+2x+1" and "(x+1)^2". One formula, in
    LaTeX or plain, of 300 characters at most; sums, integrals, limits, factorials and towers of powers are not computed, and
    wrong.

    Known exploits: math-verify's own equalities, such as "50" for "50%"; the form of the answer (reduced, factored) is not
    checked.
    """
    text, why = given(case)
    if text is None:
        return Score(0.0, detail=why)
    truth = _truth(case)
    if text.strip() == truth.strip() and truth.strip():
        return Score(1.0, detail="the truth itself")
    wanted = formula(truth)
    found = formula(text) if wanted else []
    if not found:
        return Score(0.0, detail=f"no formula that can be compared: {text[:60]!r}")
    try:
        equal = mathematics.verify_parsed(wanted, found)
    except Exception as error:  # noqa: BLE001  incomparable formulas are not equal
        return Score(0.0, detail=f"math-verify can't compare it: {type(error).__name__}")
    return Score(float(equal), detail=f"answered {text.strip()[:60]!r}")


def yes_no(case: Case) -> Score:
    """1 for the right one of yes and no: the answer begins with it, and the other one does not occur.

    Known exploits: one of two is right by chance; what follows the first word is not read.
    """
    text, why = given(case)
    if text is None:
        return Score(0.0, detail=why)
    found, truth = said(text), said(_truth(case))
    if truth is None:
        raise ValueError(f"the answer {_truth(case)!r:.60} of a question of kind yes-no is neither yes nor no")
    return Score(float(found == truth), detail=f"said {found}" if found else f"neither yes nor no: {text[:60]!r}")


def said(text: str) -> str | None:
    """yes or no; None for any other text, and for one with both, or with a number, which could answer two questions."""
    words = [w.casefold() for w in _WORD.findall(text[: MAX_ANSWER + 1])]
    if (
        len(text) > MAX_ANSWER
        or not words
        or words[0] not in ("yes", "no")
        or {"yes", "no"} <= set(words)
        or re.search(r"\d", text)
        or len(words) > 2 * MAX_WORDS
    ):
        return None
    return words[0]


def text(case: Case, votes: bool = False) -> Score:
    """1 for an accepted answer: the truth, or one of `meta["answers"]`. Equal without regard to case, articles, hyphens, blanks
    and stops around it; small numbers may be words.

    votes: `meta["answers"]` are those of annotators, and each vote counts a third, as in VQA's accuracy, min(votes / 3, 1); if
    the most frequent has fewer than three, its number counts as full. Known exploits: many accepted answers may include a vague
    one.
    """
    found, why = given(case)
    if found is None:
        return Score(0.0, detail=why)
    accepted = [str(a) for a in (case.meta.get("answers") or _all(case.answer))]
    plain = normalise(found) if len(found) <= 8 * max(map(len, accepted), default=0) + 256 else ""
    counts: dict[str, int] = {}
    for one in map(normalise, accepted):
        counts[one] = counts.get(one, 0) + 1
    hits = counts.get(plain, 0) if plain else 0
    full = min(ENOUGH, max(counts.values(), default=1)) if votes else 1
    return Score(min(hits / full, 1.0), detail=f"answered {found.strip()[:60]!r}")


def form(case: Case) -> float:
    """1 when the completion is one `<think>...</think>` and one `<answer>...</answer>`, neither empty, and blanks at most.

    Known exploits: the text in the tags is not read; combine it with a reward for the answer.
    """
    inside, _ = only_answer(case.completion)
    head, _, rest = case.completion.strip().partition("</think>")
    return float(
        inside is not None
        and bool(inside.strip())
        and head.startswith("<think>")
        and head.count("<think>") == 1
        and bool(head[len("<think>") :].strip())
        and "think>" not in rest
        and rest.lstrip().startswith("<answer>")
        and rest.endswith("</answer>")
    )


BY_KIND: dict[str, Callable[[Case], Score]] = {"choice": choice, "number": number_, "math": math, "yes-no": yes_no, "text": text}


def given(case: Case) -> tuple[str | None, str]:
    """(the answer as it was written, ""), or (None, why there is none)."""
    style, said = case.meta.get("style"), without_thinking(case.completion)
    if style in ("boxed", "described"):
        found = boxed(said)
        inside, why = found, "" if found is not None else "no box"
    elif style != "plain":
        inside, why = only_answer(case.completion)
    else:
        inside, why = (None, "too long") if len(said) > 50 * MAX_ANSWER else (said, "")
    if inside is not None and not inside.strip():
        return None, "an empty answer"
    return inside, why


def same(first: str, second: str) -> bool:
    """Both are the same short text."""
    return len(first) <= 8 * len(second) + 256 and bool(normalise(second)) and normalise(first) == normalise(second)


def normalise(text: str) -> str:
    """The form in which short texts are compared: words of letters, marks and digits, and the signs of numbers."""
    folded = nfc(nfc(text).casefold())
    words = [w.strip("\"'`*.,;:!?()[]") or w for w in re.sub(r"(?<=\w)[-_\u2010-\u2014](?=\w)", " ", folded).split()]
    kept = [w for w in words if w not in _ARTICLES] or words
    return " ".join(str(UNITS.index(w)) if w in UNITS else w for w in kept)


def _all(answer: Any) -> Sequence[Any]:
    return answer if isinstance(answer, list | tuple) else () if answer is None else (answer,)


def _truth(case: Case) -> str:
    return next((str(a) for a in _all(case.answer)), "")

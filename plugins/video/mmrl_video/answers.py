"""Our verifiers for answers about clips: an option, a number, a text. `verifiers.py` has those for times and positions.

The answer is read from the one `<answer>` tag, if there is any or the task requests tags, else it is the whole completion.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmrl import Case, Score
from mmrl_video import reading
from mmrl_video.words import f1, rightness

THRESHOLDS = (*(0.5 + (0.95 - 0.5) / 9 * i for i in range(9)), 0.95)
"""Confidences of the mean relative accuracy, 0.5 to 0.95, to the last digit as the released code has them: they decide where an
error is as large as is allowed."""
ARTICLES = frozenset(("a", "an", "the"))
SPARE = 50
"""Maximum of words of an answer beyond twenty times those of the truth."""


def choice(case: Case) -> Score:
    """1 for the letter of the right option, `case.answer`, and only for a letter: "B", "(b)", "B.", "The answer is B", "B. a red
    square" if that is the option's text in `meta["options"]`.

    Known exploits: one of n letters is right by chance. Two letters, or a letter and other words, are no answer.
    """
    text, why = reading.said(case)
    if text is None:
        return Score(0.0, detail=why)
    return picked(text, str(case.answer), case.meta.get("options", ()))


def picked(text: str, true: str, options: Sequence[str]) -> Score:
    """`choice` for an answer's text."""
    found, wanted = reading.letter(text, options), reading.letter(true, options)
    if wanted is None:
        raise ValueError(f"the answer {true!r:.60} of a question with options is not a letter")
    if found is None:
        return Score(0.0, detail=f"no single letter: {text.strip()[:60]!r}")
    return Score(float(found == wanted), detail=f"chose {found}")


def number(case: Case, relative: float | None = None, absolute: float | None = None, graded: bool = False) -> Score:
    """1 for the number, within the tolerance: "12", "1,200 m", "about 7 people". One number only, and few words around it; units
    are not compared.

    relative: relative tolerance, by default `meta["relative"]`, or 0. absolute: absolute tolerance.
    graded: the mean relative accuracy of VSI-Bench instead (Yang et al. 2025, "Thinking in Space", section 3.2): the share of the
    confidences 0.5, 0.55 ... 0.95 for which the relative error is at most 1 minus the confidence. The paper has "below", and the
    code behind its figures "at most": 5 for 4 is 0.6.

    Known exploits: the unit is not read; a small count is right by chance. Graded, a constant middle number earns something; a
    truth of 0 has no relative error, and only 0 is right.
    """
    text, why = reading.said(case)
    if text is None:
        return Score(0.0, detail=why)
    found, true = reading.value(text), reading.value(str(case.answer))
    if true is None:
        raise ValueError(f"the answer {case.answer!r:.60} of a question of kind number is not a number")
    if found is None:
        return Score(0.0, detail=f"no single number: {text.strip()[:60]!r}")
    off, detail = abs(found - true), f"answered {found:g}"
    if graded:
        error = off / abs(true) if true else float(off > 0)
        return Score(sum(error <= 1 - at for at in THRESHOLDS) / len(THRESHOLDS), detail=detail)
    share = float(case.meta.get("relative", 0.0) if relative is None else relative)
    room = max(float(case.meta.get("absolute", 0.0) if absolute is None else absolute), (share + 1e-9) * abs(true))
    return Score(float(off <= room), detail=detail)


def text(case: Case, exact: bool = False) -> Score:
    """1 minus the word error rate of a transcribed text, at least 0; of several accepted texts, `meta["answers"]`, the best.

    Words are compared without regard to case and punctuation around them; exact: with case. Known exploits: a text that is nearly
    right earns nearly all; a common word of the truth earns its share, one of n.
    """
    found, why = reading.said(case)
    if found is None:
        return Score(0.0, detail=why)
    words = reading.plain_words(found, exact)
    value = max(rightness(reading.plain_words(true, exact), words) for true in accepted(case))
    return Score(value, detail=f"{1 - value:.0%} of the words are wrong")


def open_(case: Case) -> Score:
    """The F1 of the words of a free answer and the true one, with repetitions, without articles; of several accepted ones,
    `meta["answers"]`, the best. The F1 of SQuAD (Rajpurkar et al. 2016, section 6.1). A truth that is yes or no earns 1 if the
    answer begins with it, else 0: the rule of TempCompass (Liu et al. 2024, eval_yes_no.py), whose model for other answers is
    left out, as by its `--disable_llm`.

    Known exploits: the order of words is not read, nor is "not"; words of the question that occur in the answer earn a share; yes
    and no are right by chance, and what follows them is not read.
    """
    found, why = reading.said(case)
    if found is None:
        return Score(0.0, detail=why)
    words, value = bag(found), 0.0
    for true in map(bag, accepted(case)):
        if true in (["yes"], ["no"]):
            value = max(value, float(" ".join(words).startswith(true[0])))
        elif len(words) <= 20 * len(true) + SPARE:
            value = max(value, f1(true, words))
    return Score(value, detail=f"F1 {value:.3f}")


def accepted(case: Case) -> list[str]:
    """The accepted texts. Raises ValueError for a question without one."""
    several = case.meta.get("answers") or (case.answer if isinstance(case.answer, list | tuple) else [case.answer])
    found = [str(one) for one in several if one is not None and str(one).strip()]
    if not found:
        raise ValueError("a question of kind text has no answer")
    return found


def bag(text: str) -> list[str]:
    """The words of a text without articles, unless it has no others."""
    words = reading.plain_words(text)
    return [word for word in words if word not in ARTICLES] or words

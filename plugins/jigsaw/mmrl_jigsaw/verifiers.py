"""Verifiers for jigsaw puzzles.

An answer is read from the one `<answer>` tag after the thinking; if the prompt requested no tags (`meta["tags"] = False`), a
completion without tags is the answer as a whole. Numbers may be in brackets, with blanks, commas, semicolons, bars or line breaks
between them. Numbers within prose are not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from mmrl import Case, Score
from mmrl.api.tasks.option_checks import check_choice
from mmrl.api.verifiers.parse import short_answer

LONGEST = 4000
"""Maximum of characters of an answer; the longest right one, of 400 patches, has half as many."""
_NUMBERS = re.compile(r"[0-9]{1,4}(?: [0-9]{1,4})*")
_CHOICE = re.compile(r"\(?([a-z])[).:]?(?: (.+))?")
"""A letter, perhaps followed by the words of its choice."""


def placement(case: Case, chance: Literal["keep", "subtract"] = "keep") -> Score:
    """Share of the patches that are placed correctly; an answer that is not a permutation earns 0.

    `case.answer`: the numbers from 1, row by row, as a list or as text.
    chance: "subtract" removes the score of a fixed answer, s = max(1/n, the identity's share here): (share - s) / (1 - s), and 0
    below. So the identity earns nothing unless it is right, nor does one lucky patch; a perfect answer still earns 1. Known
    exploits: with "keep", any fixed permutation earns 1/n on average.
    """
    check_choice("chance", chance, ("keep", "subtract"))
    wanted = truth(case)
    given, why = permutation(case, len(wanted))
    if given is None:
        return Score(0.0, detail=why)
    right = _right(given, wanted)
    share = right / len(wanted)
    if chance == "subtract":
        free = max(1, _right(sorted(wanted), wanted)) / len(wanted)
        share = max(0.0, (share - free) / (1 - free)) if free < 1 else float(share == 1)
    return Score(share, detail=f"{right} of {len(wanted)} right")


def exact(case: Case) -> Score:
    """1 when every number of the answer is right: the whole permutation, or the one number of a `single` question. Else 0.

    Known exploits: none; a random permutation is right once in n! puzzles, and in a puzzle of two patches every other time.
    """
    wanted = truth(case)
    given, why = numbers(case, len(wanted))
    return Score(0.0, detail=why) if given is None else Score(float(given == wanted), detail=f"read {given}"[:80])


def pair(case: Case) -> Score:
    """1 when the answer is the letter of the right relation, `case.answer`, or that relation in the words of `meta["choices"]`.

    "B", "b", "(B)", "B.", "B) 1 is directly above 2" are all the same; a letter with other words, or two letters, are no answer.
    Known exploits: none; guessing is right once in as many times as there are choices.
    """
    chosen, why = _choice(case)
    return Score(0.0, detail=why) if chosen is None else Score(float(chosen == str(case.answer)), detail=f"read {chosen}")


def form(case: Case) -> Score:
    """1 when the completion is an answer of the requested kind and nothing else: a permutation, a number, a letter.

    With tags, one thought that isn't empty comes before the answer, and nothing but blanks between and around.
    Known exploits: the answer is not checked, so every well-formed guess earns it; give it a small weight.
    """
    if fault := _fault_of_form(case.completion, bool(case.meta.get("tags", True))):
        return Score(0.0, detail=fault)
    kind = case.meta.get("question", "full")
    if kind == "pair":
        why = _choice(case)[1]
    elif kind == "single":
        count = int(case.meta["m"]) * int(case.meta["n"])
        given, why = numbers(case, 1)
        if given and not 1 <= given[0] <= count:
            why = f"{given[0]} is no position of 1 to {count}"
    else:
        why = permutation(case, len(truth(case)))[1]
    return Score(float(not why), detail=why)


# -- reading ----------------------------------------------------------------------------------------------------------------


def truth(case: Case) -> list[int]:
    """The answer's numbers, in any form that tasks use: [2, 1], "2,1" or "2"."""
    answer: Any = re.findall(r"[0-9]+", case.answer) if isinstance(case.answer, str) else case.answer
    return [int(number) for number in answer]


def permutation(case: Case, count: int) -> tuple[list[int] | None, str]:
    """(the numbers from 1 to `count` in some order, ""), or (None, what is wrong with the answer)."""
    given, why = numbers(case, count)
    if given is not None and sorted(given) != list(range(1, count + 1)):
        return None, f"{str(given)[:60]} has not each number from 1 to {count} once"
    return given, why


def numbers(case: Case, count: int) -> tuple[list[int] | None, str]:
    """(the answer's `count` numbers, ""), or (None, what is wrong with it)."""
    text, why = _answer(case)
    if text is None:
        return None, why
    plain = " ".join(re.sub(r"[\[\](){},;|`\s]+", " ", text).split()).removesuffix(".").rstrip()
    if not plain.isascii() or not _NUMBERS.fullmatch(plain):
        return None, f"{text.strip()!r:.60} is no list of numbers"
    found = [int(piece) for piece in plain.split(" ")]
    return (
        (found, "")
        if len(found) == count
        else (None, f"{len(found)} of {count} numbers" if len(found) < count else f"{len(found)} numbers, not {count}")
    )


def _choice(case: Case) -> tuple[str | None, str]:
    """(the letter that is chosen, ""), or (None, why none is)."""
    text, why = _answer(case)
    if text is None:
        return None, why
    choices, plain = [_words(choice) for choice in case.meta.get("choices", ())], _words(text)
    if plain in choices:
        return chr(ord("A") + choices.index(plain)), ""
    found = _CHOICE.fullmatch(plain)
    place = ord(found[1]) - ord("a") if found else len(choices)
    if found and place < len(choices) and found[2] in (None, choices[place]):
        return found[1].upper(), ""
    return None, f"{text.strip()!r:.60} is none of the choices"


def _fault_of_form(text: str, tags: bool) -> str:
    """Why a completion is not a thought and an answer in their tags, or an answer without tags; empty if it is."""
    if not tags:
        return "tags were not asked for" if "<think>" in text or "<answer>" in text else ""
    before, _, rest = text.strip().partition("<think>")
    thought, _, rest = rest.partition("</think>")
    between, opened, rest = rest.partition("<answer>")
    _, closed, after = rest.partition("</answer>")
    if before or not thought.strip() or between.strip() or not (opened and closed) or after:
        return "not a thought and then an answer, in their tags, and nothing else"
    return "more than one thought" if text.count("think>") != 2 else ""


def _words(text: str) -> str:
    return " ".join(text.split()).strip("*`\"'").removesuffix(".").casefold()


def _answer(case: Case) -> tuple[str | None, str]:
    """See `short_answer`."""
    return short_answer(case.completion, case.meta.get("tags", True), LONGEST, 2 * LONGEST)


def _right(given: Sequence[int], wanted: Sequence[int]) -> int:
    return sum(a == b for a, b in zip(given, wanted, strict=True))

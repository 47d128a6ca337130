"""The game of 24 as GeneralPoints asks for it and rewards it.

Chu et al., "SFT Memorizes, RL Generalizes: A Comparative Study of Foundation Model Post-training", appendix A. The rewards are
the paper's; its answers are read as the code does that its authors released.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from mmrl import Case, Score
from mmrl.api.verifiers.parse import MAX_LENGTH
from mmrl_vqa.arithmetic import DividesByZero, Illegal, evaluate, tokens_of
from mmrl_vqa.points24 import TARGET, points

RIGHT, WRONG_TOTAL, NOT_THE_CARDS, ILLEGAL = 5.0, -1.0, -2.0, -3.0
USED_UP = -1.0
"""Is added where the last try fails too, in a game of several."""
MISREAD = -1.5
"""Is added where the cards that the answer names are not those on the picture."""
FACES = {"10": "'J', 'Q', and 'K' count as '10'", "11-13": "'J', 'Q', and 'K' count as '11', '12', and '13' respectively"}
PROMPT = """
[Task Description]
You are an expert {target} points card game player. You are observing these four cards in the image.
Note that {faces}, and each card must be used once.
Your goal is to output a formula that evaluates to {target} using numbers from the cards and operators such as \
'+', '-', '*', '/', '(', ')', and '='.

[Output]
Your response should be a valid json file in the following format:
{{
  "cards": [x, y, z, w], where {faces},
  "number": [a, b, c, d], where a, b, c, and d are the numbers on the cards,
  "formula": 'an equation that equals {target}',
}}

"""
"""The prompt of the task with pictures, word for word."""
ANSWER = """
{{
  "cards": {cards},
  "number": {numbers},
  "formula": "{formula}",
}}"""
"""The answers that it imitates first. It is no JSON, for the comma in its end, nor need it be."""
_FORMULA = re.compile(r'"formula": "([^"\n]*)"')


def prompt(faces: str) -> str:
    return PROMPT.format(target=TARGET, faces=FACES[faces])


def gold(cards: Sequence[str], faces: str, formula: str) -> str:
    return ANSWER.format(cards=list(cards), numbers=[points(c, faces) for c in cards], formula=f"{formula}={TARGET}")


def reward(case: Case, vision: bool = True) -> Score:
    """GeneralPoints' rewards: 5 for a formula of the cards that makes 24, -1 for one that makes something else, -2 for numbers
    that are not those of the cards, -3 for no legal formula; and 1.5 less where "cards" in the answer are not the ranks of
    `meta["cards"]`.

    The formula is that of the completion as JSON or behind `"formula": "`, up to its "="; blanks in it are illegal, as published.
    vision: ask for the cards, as the variant with pictures does.
    Known exploits: none, but a policy that never tries earns -1 with any legal formula of the cards. The released code differs
    from the
    paper: it adds up -2 and -3 for every fault that it finds, gives -1.5 in place of all others where cards are misread, and
    computes in floats, so that 8/(3-8/3) is not 24. The try that uses up all is punished by the world (`mmrl_vqa.revision`).
    """
    cards, faces = tuple(map(str, case.meta["cards"])), case.meta.get("faces", "10")
    formula, named = _field(case.completion, "formula"), _field(case.completion, "cards")
    value, detail = _judge(formula, [points(card, faces) for card in cards], case.meta.get("target", TARGET))
    misread = vision and sorted(_ranks(named)) != sorted(cards)
    less = MISREAD if misread else 0.0
    return Score(value + less, parts={"formula": value, "cards": less}, detail=detail)


def _judge(formula: Any, wanted: list[int], target: int) -> tuple[float, str]:
    text = formula.split("=")[0] if isinstance(formula, str) else ""
    if re.search(r"[^0-9+\-*/()]", text):
        return ILLEGAL, "illegal characters"
    try:
        total, used = evaluate(text)
    except DividesByZero:
        total, used = None, [int(t) for t in tokens_of(text) if t.isdigit()]
    except Illegal as error:
        return ILLEGAL, str(error)
    if sorted(used) != sorted(wanted):
        return NOT_THE_CARDS, "not the numbers on the cards"
    return (RIGHT, "correct") if total == target else (WRONG_TOTAL, f"makes {total}")


def _field(text: str, name: str) -> Any:
    """A field of the completion as JSON, or behind its name in it; None without one."""
    if len(text) > MAX_LENGTH:
        return None
    try:
        found = json.loads(text)
        if isinstance(found, dict) and name in found:
            return found[name]
    except (ValueError, RecursionError):
        pass
    if name == "formula":
        match = _FORMULA.search(text)
        return match[1] if match else None
    return _bracketed(text, f'"{name}": [')


def _bracketed(text: str, opening: str) -> str | None:
    """What the first brackets behind the opening hold that are not empty."""
    at = text.find(opening)
    while at >= 0:
        start = at + len(opening)
        end = text.find("]", start)
        if end > start:
            return text[start:end]
        at = text.find(opening, end) if end >= 0 else -1
    return None


def _ranks(named: Any) -> list[str]:
    if isinstance(named, str):
        named = named.split(",") if len(named) < 200 else ()
    if not isinstance(named, list | tuple):
        return []
    return [str(one).strip().strip("'\"").strip() for one in named[:64]]

"""Prompt and rewards of GeneralPoints for the game of 24.

Chu et al., "SFT Memorizes, RL Generalizes: A Comparative Study of Foundation Model Post-training", appendix A. The rewards are
the paper's; answers are parsed as in the authors' released code.
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
"""Added if the last of several tries fails."""
MISREAD = -1.5
"""Added if the cards in the answer are not those in the picture."""
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
"""The answers that are imitated first. The final comma makes it invalid JSON, as published."""
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
    vision: require the cards, as in the variant with pictures. Known exploits: none, but a policy that never searches earns -1
    with any legal formula of the cards. The released code differs from the paper: it adds up -2 and -3 for every fault, gives
    only -1.5 if cards are misread, and computes in floats, so that 8/(3-8/3) is not 24. The environment adds the penalty of the
    last try (`mmrl_vqa.revision`).
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
    """The content of the first nonempty brackets after the opening."""
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

"""Prompt and rewards of GeneralPoints for the game of 24, as in the released code, faults included
(github.com/LeslieTrue/SFTvsRL, commit 5a6ea55: `prompt_lib/prompts.py`, `utils_rl.py`, `utils_general.py`).

Chu et al. 2025, "SFT Memorizes, RL Generalizes: A Comparative Study of Foundation Model Post-training".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from mmrl import Case, Score
from mmrl.api.verifiers.parse import MAX_LENGTH
from mmrl_vqa import generalpoints_formulas as formulas
from mmrl_vqa.points24 import TARGET, points

RIGHT = formulas.CORRECT
MISREAD = -1.5
"""All that an answer earns whose cards are not those in the picture."""
USED_UP = -1.0
"""Paid when the tries are used up."""
LOWEST = -100.0
"""Faults add up, but no answer earns less than this."""
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
    """GeneralPoints' rewards: -1.5 where "cards" are not the ranks of `meta["cards"]`, and otherwise what
    `generalpoints_formulas.judge` pays for the formula: 5 if it makes 24, -1 if not, and -2 or -3 for each fault instead.

    "cards" and "formula" are those of the completion as JSON, or stand behind their names in it; the formula ends at its "=". As
    published: cards that are a list in valid JSON are misread, so are four that are bare numbers with a comma and a blank between
    them, or stand in double quotes; blanks in the formula are illegal. Where the published code raises (a formula in JSON that is
    no text), the formula is illegal here, and nothing is below -100.
    vision: require the cards, as in the variant with pictures. Known exploits, as published: misreading the cards costs less than
    most faults of a formula. The environment adds the penalty of the last try (`mmrl_vqa.revision`).
    """
    cards, faces = tuple(map(str, case.meta["cards"])), case.meta.get("faces", "10")
    if vision and sorted(_ranks(_field(case.completion, "cards"))) != sorted(cards):
        return Score(MISREAD, parts={"formula": 0.0, "cards": MISREAD}, detail="you recognized wrong cards")
    formula = _field(case.completion, "formula")
    text = formula.split("=")[0] if isinstance(formula, str) else " "
    verdict = formulas.judge(text, [points(card, faces) for card in cards], case.meta.get("target", TARGET))
    value = max(verdict.reward, LOWEST)
    return Score(value, parts={"formula": value, "cards": 0.0}, detail=verdict.message)


def _field(text: str, name: str) -> Any:
    """A field of the completion as JSON, or behind its name in it; "None" without one, None for cards that are bare numbers."""
    if len(text) > MAX_LENGTH:
        return "None"
    try:
        found = json.loads(text)
        if isinstance(found, dict) and name in found:
            return found[name]
    except (ValueError, RecursionError):
        pass
    if name == "formula":
        match = _FORMULA.search(text)
        return match[1] if match else "None"
    named = _bracketed(text, f'"{name}": [')
    return None if _whole_numbers(named) else named


def _bracketed(text: str, opening: str) -> str:
    """The content of the first nonempty brackets after the opening."""
    at = text.find(opening)
    while at >= 0:
        start = at + len(opening)
        end = text.find("]", start)
        if end > start:
            return text[start:end]
        at = text.find(opening, end) if end >= 0 else -1
    return "None"


def _ranks(named: Any) -> list[str]:
    """The ranks of four cards in a text; none otherwise."""
    if not isinstance(named, str):
        return []
    ranks = re.sub(r"[\[\]' ]", "", named).split(",")
    return ranks if len(ranks) == 4 else []


def _whole_numbers(text: str) -> bool:
    try:
        return bool([int(each) for each in text.split(", ")])
    except ValueError:
        return False

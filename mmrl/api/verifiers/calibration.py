"""Rewards for a confidence that is stated with an answer, as `<confidence>0.8</confidence>`."""

from __future__ import annotations

from mmrl.api.types import Score
from mmrl.api.verifiers.parse import only_answer, parse_number


def stated_confidence(text: str) -> tuple[float | None, str]:
    """(the number of the only `<confidence>...</confidence>` outside of the thinking, 0..1, ""), or (None, why there is none).

    A percentage isn't one, nor is a number outside 0..1: what is meant by 80 would be a guess."""
    inside, why = only_answer(text, "confidence")
    if inside is None:
        return None, why
    number = None if "%" in inside else parse_number(inside)
    if number is None or not 0 <= number <= 1:
        return None, f"the confidence {inside.strip()[:40]!r} is no number from 0 to 1"
    return number, ""


def brier(text: str, correct: bool) -> Score:
    """1 - (q - c)^2 with the stated confidence q and c = 1 for a correct answer, else 0; 0 without a confidence.

    The calibration reward of RLCR (Damani et al., Beyond Binary Rewards, arXiv 2507.16806), shifted by 1 as in its
    code, which no comparison of completions notices. Its expectation is highest where q is the probability of being correct. It
    is meant beside a reward for correctness of at least the same weight: alone it pays an answer that is surely wrong, and says
    so, as much as one that is right.
    """
    confidence, why = stated_confidence(text)
    if confidence is None:
        return Score(0.0, detail=why)
    return Score(1 - (confidence - correct) ** 2, detail=f"{'right' if correct else 'wrong'} with confidence {confidence:g}")

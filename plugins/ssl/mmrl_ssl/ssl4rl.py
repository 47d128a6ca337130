"""The rewards of SSL4RL as published, faults included (github.com/PKU-ML/SSL4RL, verl/utils/reward_score/ssl4rl.py).

Guo et al. 2025, "SSL4RL: Revisiting Self-supervised Learning as Intrinsic Reward for Visual-Language Reasoning".
"""

from __future__ import annotations

from mmrl import Case
from mmrl.api.verifiers.parse import first_tag

MARKER = "assistant\n"


def answer(case: Case) -> float:
    """1 when the first `<answer>` after the last "assistant" at a line's end is the answer, character for character.

    Blanks around are ignored. An answer with commas is a list of which each piece is right.
    Known exploits, as published: further answer tags and the thinking are ignored; a tag inside the thought counts. On the other
    hand "90.0", "Positive" and "top left" are wrong.
    """
    given = first_tag(case.completion.rpartition(MARKER)[2])
    return float(given is not None and given.strip() in [piece.strip() for piece in str(case.answer).split(",")])

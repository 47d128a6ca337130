"""The jigsaw reward of SSL4RL as published, faults included (github.com/PKU-ML/SSL4RL, verl/utils/reward_score/jigsaw.py).

Guo et al. 2025, "SSL4RL: Revisiting Self-supervised Learning as Intrinsic Reward for Visual-Language Reasoning".
"""

from __future__ import annotations

from mmrl import Case
from mmrl.api.verifiers.parse import first_tag

MARKER = "assistant\n"


def inverse(case: Case) -> float:
    """Share of the places that are right, for an answer such as "3,2,1,4": where the patch of each place is to be found.

    The first `<answer>` after the last "assistant" at a line's end is read, split at commas, and each piece read as `int` reads
    it: blanks, a plus, leading zeros, underscores and the digits of other scripts pass. Without a tag 0.
    Known exploits, as published: repeats are allowed, so the same number everywhere always earns 1/n; a short answer earns its
    share, and further pieces are ignored; a piece that is not a number is wrong only itself.
    """
    given = first_tag(case.completion.rpartition(MARKER)[2])
    if given is None:
        return 0.0
    wanted = case.answer.split(",") if isinstance(case.answer, str) else [str(place) for place in case.answer]
    pieces = given.strip().split(",", len(wanted))
    score = 0.0  # added up as published, so that it is equal to the last bit
    for place, piece in zip(wanted, pieces, strict=False):
        score += _equal(place, piece) / len(wanted)
    return min(score, 1.0)  # nine ninths are a little more than 1


def _equal(wanted: str, given: str) -> bool:
    try:
        return int(wanted) == int(given)
    except ValueError:  # no number, or thousands of digits
        return False

"""How often answers reflect, and whether that helps: the figures of MAYE (Ma et al. 2025, Rethinking RL Scaling for Vision
Language Models, section on reflection)."""

from __future__ import annotations

import re

from mmrl import Case, Score
from mmrl.api.verifiers.parse import MAX_LENGTH
from mmrl_vqa.verifiers import answer

WORDS = (
    *("re-check", "re-evaluate", "re-examine", "re-think", "recheck", "reevaluate", "reexamine", "reevaluation", "rethink"),
    *("check again", "think again", "try again", "verify", "wait", "yet"),
)
"""What counts as reflecting. The paper's list, from memory: its code was not at hand."""
_WORD = re.compile(rf"\b(?:{'|'.join(map(re.escape, WORDS))})\b")


def reflection(case: Case) -> Score:
    """1 where the completion reflects, with its parts `right`, 1 where it also answers right, and `words`, how many of `WORDS` it
    has. To be reported, with the weight 0: then the run's figures have the share of reflective answers, and `right` over it is
    how many of these are right.

    Known exploits: a reward for it would be earned by saying "wait".
    """
    found = len(_WORD.findall(case.completion[:MAX_LENGTH].lower()))
    right = bool(found) and answer(case).value == 1.0
    return Score(float(bool(found)), parts={"right": float(right), "words": float(found)}, detail=f"{found} words of reflection")

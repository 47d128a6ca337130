"""How often answers reflect, and whether that helps: the metrics of MAYE (Ma et al. 2025, Rethinking RL Scaling for Vision
Language Models, section on reflection)."""

from __future__ import annotations

import re

from mmrl import Case, Score
from mmrl.api.verifiers.parse import MAX_LENGTH
from mmrl_vqa import maye_rewards
from mmrl_vqa.asking import MAYE
from mmrl_vqa.verifiers import answer

WORDS = (
    *("re-check", "re-evaluate", "re-examine", "re-think", "recheck", "reevaluate", "reexamine", "reevaluation", "rethink"),
    *("check again", "think again", "try again", "verify", "wait", "yet"),
)
"""Words of reflection: the paper's list."""
_WORD = re.compile(rf"\b(?:{'|'.join(map(re.escape, WORDS))})\b")


def reflection(case: Case) -> Score:
    """1 if the completion reflects, with the parts `right`, 1 if it also answers right, and `words`, its number of `WORDS`. Use
    the weight 0: then the run's metrics have the share of reflective answers, and `right` divided by it is the share of these
    that are right.

    Known exploits: as a reward, it would be earned by the word "wait".
    """
    found = len(_WORD.findall(case.completion[:MAX_LENGTH].lower()))
    verdict = maye_rewards.accuracy(case) if case.meta.get("style") == MAYE else answer(case).value
    right = bool(found) and verdict == 1.0
    return Score(float(bool(found)), parts={"right": float(right), "words": float(found)}, detail=f"{found} words of reflection")

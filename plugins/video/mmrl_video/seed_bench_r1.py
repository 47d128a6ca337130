"""The reward of SEED-Bench-R1 as published (github.com/TencentARC/SEED-Bench-R1, commit 12e8fcc).

Chen et al. 2025, "Exploring the Effect of Reinforcement Learning on Video Understanding: Insights from SEED-Bench-R1". The
released run has no format reward.
"""

from __future__ import annotations

from mmrl import Case
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import first_tag


def letter(case: Case) -> float:
    """SEED-Bench-R1's accuracy: math-verify finds the truth in the completion, or the first sign of the first `<answer>` is that
    of the truth.

    Known exploits, as published: "Apple" is right for A and "D?" for D; "(C)" is wrong for C; without a tag only numbers are
    found.
    """
    text = "" if case.answer is None else str(case.answer)
    if mathematics.answers_match(case.completion, text):
        return 1.0
    tagged, given = first_tag(text), first_tag(case.completion)
    wanted, found = (text if tagged is None else tagged).strip(), (given or "").strip()
    return float(bool(found and wanted) and found[0] == wanted[0])

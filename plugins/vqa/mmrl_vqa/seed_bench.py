"""The reward of SEED-Bench-R1 as published (github.com/TencentARC/SEED-Bench-R1, commit 12e8fcc)."""

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
    wanted, given = first_tag(text), first_tag(case.completion)
    wanted = (text if wanted is None else wanted).strip()
    if mathematics.answers_match(case.completion, text):
        return 1.0
    given = "" if given is None else given.strip()
    return float(bool(given and wanted) and given[0] == wanted[0])

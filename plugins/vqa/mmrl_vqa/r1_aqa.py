"""The rewards of R1-AQA as published, faults included (github.com/xiaomi-research/r1-aqa, commit 5d24f31, src/utils/rewards.py).

Li et al. 2025, "Reinforcement Learning Outperforms Supervised Fine-Tuning: A Case Study on Audio Question Answering". The rewards
read text alone, so they score any question whose options are words.
"""

from __future__ import annotations

from mmrl import Case, Score
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import first_tag_on_line


def reward(case: Case) -> Score:
    """R1-AQA's sum of accuracy and format, each with weight 1: 0, 1 or 2.

    Known exploits: those of `accuracy`; an empty pair of tags earns 1 for any question.
    """
    right, formed = accuracy(case), form(case)
    return Score(right + formed, parts={"accuracy": right, "format": formed})


def accuracy(case: Case) -> float:
    """1 if math-verify finds the truth in the completion, or the first answer tag that opens and closes on one line holds the
    truth, letter by letter. A completion or a truth without such a tag is compared whole.

    Known exploits, as published: "Dog" and "dog." are wrong for "dog". math-verify reads no number that a tag touches, so "3.0"
    is wrong for "<answer>3</answer>". Of a truth that it reads, "3" or "<answer>$3$</answer>", any number outside is right.
    Formulas for which math-verify takes long are not compared by it.
    """
    truth = "" if case.answer is None else str(case.answer)
    if mathematics.answers_match(case.completion, truth):
        return 1.0
    return float(_said(case.completion) == _said(truth))


def form(case: Case) -> float:
    """1 if the completion begins with an opening and ends with a closing answer tag.

    Known exploits, as published: empty tags pass, so do further tags between the two.
    """
    first, last = "<answer>", "</answer>"
    text = case.completion
    return float(text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last))


def _said(text: str) -> str:
    found = first_tag_on_line(text)
    return (text if found is None else found).strip()

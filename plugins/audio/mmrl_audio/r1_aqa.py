"""The prompts and rewards of R1-AQA as published, faults included (github.com/xiaomi-research/r1-aqa, commit 5d24f31:
src/dataset/dataset.py, src/test_mmau.py, src/utils/rewards.py).

Li et al. 2025, "Reinforcement Learning Outperforms Supervised Fine-Tuning: A Case Study on Audio Question Answering", arXiv
2503.11197. The rewards read text alone, so they score any question whose options are words; training sums the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmrl import Case
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import first_tag_on_line, has_think_answer_format

_LISTED = "{0} Please choose the answer from the following options: {1}. Output the "
PROMPTS = {
    "r1-aqa": _LISTED + "final answer in <answer> </answer>.",
    "r1-aqa-think": _LISTED + "thinking process in <think> </think> and final answer in <answer> </answer>.",
}
"""Style -> prompt, word for word: of the released run, and prompt <3> of the paper, for answers behind a thought."""


def asked(question: str, options: Sequence[str], style: str) -> str:
    """The text of a prompt; the options stand in it as Python writes a list."""
    return PROMPTS[style].format(question, list(options))


def about_sound(question: str) -> str:
    """A question of AVQA, which asks about videos, as R1-AQA asks it about their sound."""
    return question.replace("video", "audio")


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


def form(case: Case, think: bool = False) -> float:
    """1 if the completion begins with an opening and ends with a closing answer tag. think: it begins with a thought instead, and
    nothing but blanks is between the thought and the answer.

    Known exploits, as published: empty tags pass, so do further tags between the first and the last; an empty pair of tags earns
    it for any question.
    """
    text = case.completion
    if think:
        return float(has_think_answer_format(text))
    first, last = "<answer>", "</answer>"
    return float(text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last))


def _said(text: str) -> str:
    found = first_tag_on_line(text)
    return (text if found is None else found).strip()

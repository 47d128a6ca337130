"""The rewards of Video-R1, as published, faults included (github.com/tulerfeng/Video-R1, commit 59d65c3).

Feng et al. 2025, "Video-R1: Reinforcing Video Reasoning in MLLMs". The kind of a question is `meta["problem_type"]`; the
published code uses that of the batch's first row for the whole batch.
"""

from __future__ import annotations

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag, has_think_answer_format
from mmrl_video.rouge import mean_rouge
from mmrl_video.words import rightness

TINY = 1e-9


def answer(case: Case) -> float:
    """Video-R1's accuracy of the first `<answer>`, by `meta["problem_type"]`; of any other type it is 0.

    "multiple choice": the same text. "numerical": both have a point or a comma or neither has, and they are equal when rounded to
    two decimals. "OCR": 1 minus the word error rate. "free-form": the mean of ROUGE-1, 2 and L. "regression": 1 minus the
    relative error. `case.answer`: the truth, in its tag or without.

    Known exploits, as published: "nan" is a right regression; words of the question earn a share in free-form answers, where a
    right answer of a single word earns 2/3; "B. left" is wrong for B, 1,000 for 1000, -6.0 for -6, and 0 for a regression of 0.
    Unlike the published code, free-form answers of more than `MAX_LENGTH` characters are 0.
    """
    given, text = first_tag(case.completion), "" if case.answer is None else str(case.answer)
    tagged = first_tag(text)
    found, true = ("" if given is None else given).strip(), (text if tagged is None else tagged).strip()
    match case.meta.get("problem_type"):
        case "multiple choice":
            return float(found == true)
        case "numerical":
            return float(_has_decimal(found) == _has_decimal(true) and _same(found, true))
        case "OCR":
            return rightness(true.split(), found.split())
        case "free-form":
            return min(1.0, mean_rouge(true, found)) if len(found) <= MAX_LENGTH else 0.0
        case "regression":
            return _nearness(_number(found), _number(true))
    return 0.0


def form(case: Case) -> float:
    """Video-R1's format: `<think>.*?</think>\\s*<answer>.*?</answer>` matches the whole completion, line breaks included.

    Known exploits, as published: empty blocks and any number of further tags inside pass; a blank at either end doesn't.
    """
    return float(has_think_answer_format(case.completion))


def _has_decimal(text: str) -> bool:
    return "." in text or "," in text


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _same(found: str, true: str) -> bool:
    a, b = _number(found), _number(true)
    return a is not None and b is not None and round(a, 2) == round(b, 2)


def _nearness(found: float | None, true: float | None) -> float:
    if found is None or true is None:
        return 0.0
    error = (abs(found - true) + TINY) / (abs(true) + TINY)
    return 1.0 - min(1.0, max(0.0, error))  # in this order NaN counts as no error, as published

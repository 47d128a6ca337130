"""The rewards of R1-Reward as published, faults included (github.com/yfzhang114/r1_reward, commit 3693413).

Zhang et al., "R1-Reward: Training Multimodal Reward Model Through Stable Reinforcement Learning".
"""

from __future__ import annotations

import re
from typing import Any

from mmrl import Case, Score
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import first_tag

PREFIXES = (
    *("The best answer is", "The correct answer is", "The answer is", "The answer: ", "Answer: "),
    *("The best option is", "The correct option is", "Best answer:", "Best option:"),
)
MAX_GIVEN = 4_000
"""Maximum of characters for math-verify, once for each accepted answer; published completions end at 1,024 tokens."""
_MARKS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")


def form(case: Case) -> float:
    """R1-Reward's format: `^<think>.*?</think><answer>.*?</answer>$` and one opening tag of each kind.

    Known exploits, as published: empty blocks pass, so do further closing tags, and one line break at the end.
    """
    return float(_formed(case.completion))


def reward(case: Case) -> Score:
    """R1-Reward's combination, 0.5 x format + accuracy x (1 + 0.5 x consistency), with a consistency of 0, its default without an
    answer of the judge model: 0 to 1.5.

    The truth is a list of accepted answers, or one. The first `<answer>`, or the whole text, is right when it reads the same, or
    math-verify calls it equal; the grader of PRM800K, which is published between these, is left out.
    Known exploits, as published: an answer is right if the comparison raises, so a number in the list of accepted answers makes
    every answer right; an empty format earns 0.5 for any answer.
    """
    formed, right = _formed(case.completion), _right(case)
    return Score(0.5 * formed + right, parts={"format": float(formed), "accuracy": right})


def _formed(text: str) -> bool:
    end = len(text) - text.endswith("\n")  # a dollar sign matches before it
    start = text.find("</think><answer>", len("<think>"))
    return (
        text.startswith("<think>")
        and text.endswith("</answer>", 0, end)
        and 0 <= start <= end - len("</answer>") - len("</think><answer>")
        and text.count("<think>") == 1
        and text.count("<answer>") == 1
    )


def _right(case: Case) -> float:
    accepted = case.answer if isinstance(case.answer, list | tuple) else [str(case.answer)]
    try:
        return float(any(_agrees(case.completion, one) for one in accepted))
    except TypeError:  # the published fault: a truth that is no text
        return 1.0


def _agrees(completion: str, truth: Any) -> bool:
    wanted = first_tag(truth) if re.search("<answer>", truth) else None  # raises where the truth is no text, as published
    wanted = (truth if wanted is None else wanted).strip()
    found = first_tag(completion)
    given = (completion if found is None else found).strip()
    for prefix in PREFIXES:
        given = given.replace(prefix, "")
    core = _plain(_core(given))
    if len(given) > MAX_GIVEN:
        return bool(core) and core == _plain(wanted)
    return (bool(core) and core == _plain(wanted)) or mathematics.answers_match(given, wanted)


def _core(text: str) -> str:
    """What R1-Reward's grader compares: the text behind the last "answer is", "=", "is " and the like, before the last ". "."""
    for mark in ("answer:", "answer is", "answers are"):
        at = text.lower().rfind(mark)
        text = text[at + len(mark) :].strip() if at >= 0 else text
    text = text[: text.rfind(". ")].strip() if ". " in text else text
    for mark in _MARKS:
        at = text.lower().rfind(mark)
        text = text[at + len(mark) :].strip() if at >= 0 else text
    return text


def _plain(text: str) -> str:
    return "".join(text.replace("\\$", "").replace("$", "").replace("%", "").split()).lower().removesuffix(".")

"""The rewards of CLS-RL and No-Thinking-RL as published, faults included (github.com/minglllli/CLS-RL, commit 0dc42e0).

Li et al., "Think or Not Think: A Study of Explicit Thinking in Rule-Based Visual Reinforcement Fine-Tuning".
"""

from __future__ import annotations

from typing import Literal

from mmrl import Case
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import first_tag_on_line, has_think_answer_format
from mmrl_classification.verifiers import answer_of


def answer(case: Case, underscores: Literal["keep", "either"] = "keep") -> float:
    """CLS-RL's accuracy: math-verify finds the label's number in the completion, or the first `<answer>` equals the label.

    The tag must open and close on one line; without one the whole completion is compared. Lower case, blanks around ignored.
    underscores: "either" also accepts the label with blanks for its underscores: the rule for open-ended pets and food.
    Known exploits, all as published: any number of the completion that equals the label's gives 1 ("model 747 jet" for "747"),
    and so does the right answer in the first of several tags.
    """
    label = answer_of(case)
    if mathematics.answers_match(case.completion, label):
        return 1.0
    given, wanted = first_answer(case.completion).lower(), first_answer(label)
    return float(given == wanted.lower() or (underscores == "either" and given == wanted.replace("_", " ").lower()))


def exact(case: Case) -> float:
    """No-Thinking-RL's reward: 1 when the completion equals the label, character for character.

    Known exploits: none; a full stop, a blank or another case gives 0.
    """
    return float(case.completion == first_answer(answer_of(case)))


def form(case: Case) -> float:
    """CLS-RL's format: `<think>.*?</think>\\s*<answer>.*?</answer>` matches the whole completion, line breaks included.

    Known exploits, as published: empty blocks and any number of further tags inside pass.
    """
    return float(has_think_answer_format(case.completion))


def first_answer(text: str) -> str:
    """The first `<answer>` that closes on its own line, else the whole text; without blanks around."""
    found = first_tag_on_line(text)
    return (text if found is None else found).strip()

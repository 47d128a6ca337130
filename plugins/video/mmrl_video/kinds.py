"""A verifier by the kind of question, for tables with several kinds."""

from __future__ import annotations

from collections.abc import Callable

from mmrl import Case, Score
from mmrl.api.tasks.option_checks import check_choice
from mmrl_video import answers

BY_KIND: dict[str, Callable[[Case], Score]] = {
    "multiple choice": answers.choice,
    "numerical": answers.number,
    "OCR": answers.text,
    "free-form": answers.open_,
    "regression": lambda case: answers.number(case, graded=True),
}
"""Video-R1's type of problem -> our verifier."""


def answer(case: Case) -> Score:
    """The score of the verifier for the question's kind: `meta["problem_type"]`, one of multiple choice (`video/choice`),
    numerical (`video/number`), OCR (`video/text`), free-form (`video/open`), regression (`video/regression`).

    Known exploits: those of these verifiers.
    """
    kind = case.meta.get("problem_type", "multiple choice")
    check_choice("problem_type", kind, BY_KIND)
    return BY_KIND[kind](case)

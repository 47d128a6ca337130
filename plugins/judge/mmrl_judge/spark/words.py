"""What SPARK's prompts say. There are several wordings of each kind, as in the released code; the words are ours."""

from __future__ import annotations

from typing import NamedTuple


class Wording(NamedTuple):
    """A prompt with the fields {question} and {answer}, and the two verdicts that it asks for."""

    text: str
    right: str
    wrong: str


_POSED = "\n\nQuestion:\n{question}\n\nAnswer:\n{answer}\n\n"
_TWO = "\n\nQuestion:\n{question}\n\nAnswer A:\n{answer_a}\n\nAnswer B:\n{answer_b}\n\n"
_TRIED = "\n\nQuestion:\n{question}\n\nEarlier reasoning:\n{cot}\n\n"
_SAID = "\n\nQuestion:\n{question}\n\nEarlier answer:\n{answer}\n\n"
_YES = "Think first. Then say Yes or No, and end with that word in \\boxed{}."
_AB = "Think first. Then choose A if it is right and B if it is wrong, and end with that letter in \\boxed{}."
_WHICH = "Think first. Then say A or B, and end with that letter in \\boxed{}."
_AGAIN = "Think first. Then answer the question, in the form that it asks for."

POINTWISE = tuple(
    Wording(intro + _POSED + how, *verdicts)
    for intro, how, verdicts in (
        ("Is this answer to the question right?", _YES, ("Yes", "No")),
        ("Check whether the answer below is correct.", _YES, ("Yes", "No")),
        ("A student has answered a question. Grade the answer.", _YES, ("Yes", "No")),
        ("Solve the question for yourself, and compare your result with the answer given.", _YES, ("Yes", "No")),
        ("Judge the answer below by what the question asks.", _AB, ("A", "B")),
        ("You mark an exam. Is the answer right?", _AB, ("A", "B")),
        ("Find out whether this answer holds.", _AB, ("A", "B")),
    )
)
PAIRWISE = tuple(
    intro + _TWO + _WHICH
    for intro in (
        "Which of these two answers to the question is right?",
        "Two students have answered a question. One of them is right: which?",
        "Compare the two answers, and choose the correct one.",
    )
)
REFLECT_REASONING = tuple(
    intro + _TRIED + _AGAIN
    for intro in (
        "Below is an attempt at a question. Check its reasoning and its result; mend what is wrong.",
        "Is the reasoning below sound? If it isn't, reason anew.",
        "The attempt below went wrong. Solve the question from the beginning.",
    )
)
REFLECT_ANSWER = tuple(
    intro + _SAID + _AGAIN
    for intro in (
        "Below is an answer to a question. Check it, and answer better if it is wrong.",
        "Somebody gave the answer below. Is it true? Answer for yourself.",
        "The answer below is wrong. Find the right one.",
    )
)

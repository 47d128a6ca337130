"""The reward of MM-Eureka as published, faults included (github.com/ModalMinds/MM-EUREKA, commit bccddd7, branch `qwen`:
`examples/scripts/reward_func_qwen_instruct.py`).

Meng et al., "MM-Eureka: Exploring the Frontiers of Multimodal Reasoning with Rule-based Reinforcement Learning", arXiv
2503.07365.
"""

from __future__ import annotations

from mmrl import Case, Score
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag_on_line

FORM = 0.5
"""What the right form earns beside 1 for the right answer."""
_CHOICES = "abcd"
_ENDS = "<|im_end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|endoftext|>"
"""Tokens that end an answer; where their texts stand in one, they are left out."""
_TAGS = "<think>", "</think>", "<answer>", "</answer>"


def reward(case: Case) -> Score:
    """MM-Eureka's reward: 1 for the right answer, as in `accuracy`, and 0.5 for the form, as in `has_form`. An empty completion
    earns nothing."""
    text = _read(case)
    parts = {"accuracy": accuracy(case), "format": FORM * has_form(text)}
    return Score(sum(parts.values()), parts=parts)


def accuracy(case: Case) -> float:
    """Whether the answer is right: what is in the first answer tag that closes on its line, else what follows the last
    `<answer>`, else the whole text.

    Known exploits, as published: a truth that math-verify can't read makes every answer right. If the truth is a letter from A to
    D, an answer that holds it anywhere and none of the other three is right, such as "Maybe" for A.
    """
    text = _read(case)
    if not text:
        return 0.0
    tagged = first_tag_on_line(text)
    said = text.split("<answer>")[-1] if tagged is None else f"<answer>{tagged}</answer>"
    truth = mathematics.parse_math(f"${case.answer}$")
    if not truth:
        return 1.0
    if _equal(said, truth):
        return 1.0
    given = (said if tagged is None else tagged).replace("</answer>", "").replace("<answer>", "").strip().lower()
    wanted = {str(one).lower() for one in truth if str(one).lower() in (*_CHOICES,)}
    return float(any({letter for letter in _CHOICES if letter in given} == {one} for one in wanted))


def has_form(text: str) -> bool:
    """Whether each of the four tags is there once: a thought, blanks, an answer, neither of them empty. Anything may stand before
    and after them."""
    if any(text.count(tag) != 1 for tag in _TAGS):
        return False
    before, _, rest = text.partition("<answer>")
    thought, closed, between = before.partition("<think>")[2].partition("</think>")
    answer, ended, _ = rest.partition("</answer>")
    return bool(thought and closed and not between.strip() and answer and ended)


def _read(case: Case) -> str:
    text = case.completion[:MAX_LENGTH]
    for end in _ENDS:
        text = text.replace(end, "")
    return text.strip()


@mathematics.unequal_on_error
def _equal(said: str, truth: list[object]) -> bool:
    return mathematics.verify_parsed(mathematics.parse_math(said, letters=True), truth)

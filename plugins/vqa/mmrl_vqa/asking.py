"""Prompts of questions with instructions for the answer, in the styles of all tasks here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl import UserError
from mmrl_vqa import easyr1, maye_rewards

STYLES = ("short", "think", "plain", "vlm-r1")
MAYE = "maye"
"""A style of tables alone: the answer stands in a box, which only MAYE's verifiers read."""
BOXED = "boxed"
"""A style of tables alone: thoughts in tags, and then the answer in a box, which our verifiers read."""
DESCRIBED = "described"
"""As `boxed`, with a description of the picture before the thoughts."""
JOINED = "r1-reward"
"""A style of tables alone: as `think`, with nothing between the two blocks, as R1-Reward's format wants."""
EUREKA = "mm-eureka"
"""A style of tables alone: as `think`, with the answer as a formula in dollar signs. MM-Eureka asks for it, and without them its
reward finds no number, formula or word right beside a tag."""
THOUGHT = "I look at the picture."
"""What gold completions think."""
HOW = {
    "choice": "answer with the letter of the right option",
    "number": "answer with a number",
    "math": "answer with a number or a formula",
    "yes-no": "answer yes or no",
    "text": "answer in a word or two",
    "formula": "answer with the formula",
}
"""Kind of question -> instruction for the answer; `formula` is the game of 24."""
DESCRIBE = (
    "First describe the picture in <description> </description> tags, so that somebody who doesn't see it can answer. Then think "
    "in <think> </think> tags. Then {}, inside \\boxed{{}}."
)
VLM_R1 = (
    " First output the thinking process in <think> </think> tags and then output the final answer in <answer> </answer> tags."
)


def ask(question: str, kind: str, style: str, options: Sequence[str] = ()) -> str:
    """The text of a prompt: the question, its options with letters, and instructions for the answer."""
    lines = [question, *(f"{letter_of(i)}. {option}" for i, option in enumerate(options))]
    how = HOW[kind]
    if style == "vlm-r1":
        return "\n".join(lines) + VLM_R1
    if style == MAYE:
        return "\n".join(lines) + maye_rewards.PROMPT
    if style == BOXED:
        return "\n".join((*lines, f"Think in <think> </think> tags, then {how}, inside \\boxed{{}}."))
    if style == DESCRIBED:
        return "\n".join((*lines, DESCRIBE.format(how)))
    if style in (JOINED, EUREKA):
        said = "$...$" if style == EUREKA else "..."
        lines.append(f"Think in <think> </think> tags, then {how}, in the form <think>...</think><answer>{said}</answer>.")
    elif style == "think":
        lines.append(f"Think in <think> </think> tags, then {how} in <answer> </answer> tags.")
    elif style == "plain":
        lines.append(f"{how.capitalize()}, and nothing else.")
    else:
        lines.append(f"{how.capitalize()} in <answer> </answer> tags.")
    return "\n".join(lines)


def written(answer: str, style: str, thought: str = THOUGHT) -> str:
    """A completion with the answer in the form of a style."""
    if style == "plain":
        return answer
    if style == MAYE:
        return maye_rewards.written(answer, thought)
    if style == BOXED:
        return easyr1.written(answer, thought)
    if style == DESCRIBED:
        return f"<description>The picture shows what leads to {answer}.</description>\n{easyr1.written(answer, thought)}"
    if style == "short":
        return f"<answer>{answer}</answer>"
    between = "" if style == JOINED else "\n"
    answer = f"${answer}$" if style == EUREKA else answer
    return f"<think>{thought}</think>{between}<answer>{answer}</answer>"


def letter_of(place: int) -> str:
    return chr(ord("A") + place)


def some_of(option: str, value: Any, choices: Sequence[str]) -> tuple[str, ...]:
    """A list of choices, as a tuple without repeats."""
    if not isinstance(value, list | tuple) or not value or any(v not in choices for v in value):
        raise UserError(f"{option} = {value!r} must be a list of some of {', '.join(choices)}")
    return tuple(dict.fromkeys(value))

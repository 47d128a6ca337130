"""Prompts of puzzles: our own, those of Jigsaw-R1, those of SSL4RL."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmrl_jigsaw.puzzle import Size

STYLES = ("plain", "tags", "jigsaw-r1", "jigsaw-r1-direct", "ssl4rl")
THINK = "\nThink in <think> </think> tags, then give the answer in <answer> </answer> tags."
PLAIN = {
    "full": "\nAnswer with the {0} numbers alone.",
    "pair": "\nAnswer with the letter alone.",
    "single": "\nAnswer with the number alone.",
}
R1_THINK = (
    "First, output the thinking process within <think> </think> tags. "
    "Then, provide the final answer within <answer> </answer> tags. "
)
R1_DIRECT = "Directly output the final answer. "
R1_FORMS = {
    "full": "The final answer should be the position indexes arranged in a {0} grid.",
    "pair": "The final answer should be a single letter.",
    "single": "The final answer should be a single number.",
}
SSL4RL_ORDERS = {  # the published examples of an answer
    2: "3,2,1,4",
    3: "8,9,3,2,1,4,7,5,6",
    4: "7,9,16,13,11,8,12,15,14,6,4,5,3,2,10,1",
    5: "12,14,1,4,18,5,17,21,16,6,8,10,2,11,15,19,20,9,22,7,24,23,3,25,13",
    6: "1,16,17,4,5,12,24,26,13,10,14,18,31,19,20,2,3,21,35,22,23,29,8,6,7,9,11,30,32,27,28,33,15,34,25,36",
}


def has_tags(style: str) -> bool:
    """Whether the style requests a thought and an answer in their tags."""
    return style in ("tags", "jigsaw-r1", "ssl4rl")


def grid(numbers: Sequence[int], size: Size) -> str:
    """Numbers as rows of text."""
    return "\n".join(" ".join(map(str, numbers[row * size.columns :][: size.columns])) for row in range(size.rows))


# -- ours -------------------------------------------------------------------------------------------------------------------


def ask(kind: str, question: str, size: Size, apart: bool, mask: float, style: str) -> str:
    """Our prompt for a question. apart: the patches are separate pictures."""
    cut = f"{_count(size.rows, 'row')} and {_count(size.columns, 'column')}"
    if apart:
        text = f"These {size.patches} pictures are the patches of one picture that was cut into {cut}, in shuffled order."
    else:
        text = f"A picture was cut into {cut}, and its patches were shuffled."
    if mask:
        text += " The borders of the patches are black."
    text += f" Positions are counted row by row, from 1 at the {_corners(size)[0]} to {size.patches} at the {_corners(size)[1]}."
    return f"{text}\n{question}" + (THINK if style == "tags" else PLAIN[kind].format(size.patches))


def full_question(size: Size, convention: str, apart: bool) -> str:
    if convention == "inverse":
        return (
            f"For each position of the original, in order: {'which picture' if apart else 'which position shown'} belongs there?"
        )
    return f"For each patch{'' if apart else ' shown'}, in order: at which position of the original does it belong?"


def single_question(place: int, convention: str) -> str:
    if convention == "inverse":
        return f"At which position is the patch shown that belongs at position {place} of the original?"
    return f"At which position of the original does the patch belong that is shown at position {place}?"


def pair_question(first: int, second: int, choices: Sequence[str]) -> str:
    return f"How did the patches shown at positions {first} and {second} lie in the original?\n{_lettered(choices)}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _corners(size: Size) -> tuple[str, str]:
    if size.rows == 1:
        return "left", "right"
    return ("top", "bottom") if size.columns == 1 else ("top left", "bottom right")


def _lettered(choices: Sequence[str]) -> str:
    return "\n".join(f"({chr(ord('A') + i)}) {choice}" for i, choice in enumerate(choices))


# -- as published -----------------------------------------------------------------------------------------------------------


def jigsaw_r1(kind: str, question: str, size: Size, mask: float, think: bool) -> str:
    """The published prompt for instruct models, word for word (utils/prompt.py)."""
    first, last = (corner.replace(" ", "-") for corner in _corners(size))
    masked = " To increase the task difficulty, the borders of each patch have been masked out." if mask > 0 else ""
    return (
        f"The input image is divided into {size} patches that have been randomly permuted from their original positions. "
        f"Your task is to solve this {size} jigsaw puzzle and reconstruct the original image.{masked}\n\n"
        f"Consider a {size} grid, where each number represents a position index ranging from 1 ({first}) to "
        f"{size.patches} ({last}):\n\n```\n{grid(range(1, size.patches + 1), size)}\n```\n\n{question}\n\n"
        f"{R1_THINK if think else R1_DIRECT}{R1_FORMS[kind].format(size)}"
    )


def jigsaw_r1_full(convention: str) -> str:
    if convention == "inverse":
        return (
            "For each position, determine which patch should belong there. If a patch currently at position X should belong at "
            'position Y, place "X" at position Y.'
        )
    return (
        "For each patch, determine its correct position index in the original image. If a patch currently at position X should "
        'belong at position Y, place "Y" at position X.'
    )


def jigsaw_r1_single(place: int, convention: str) -> str:
    if convention == "inverse":
        return f"Determine which patch belongs at position {place} in the original image."
    return f"For the patch currently at position {place}, determine its correct position index in the original image."


def jigsaw_r1_pair(first: int, second: int, choices: Sequence[str]) -> str:
    return (
        f"For patches currently at positions {first} and {second}, determine their relative position in the original image.\n\n"
        f"Select the correct answer from the following {len(choices)} choices:\n\n{_lettered(choices)}"
    )


def ssl4rl(size: Size) -> str:
    """The published prompt, which follows the patches (build_benchmarks/makejigsaw_*.py); for squares of 2 to 6 a side."""
    return (
        f"\n\nThe provided images represent {size.patches} parts of an original image, divided into a {size} grid.\n\n"
        "Your task is to determine the correct order of these parts to reconstruct the original image. "
        "Starting from the top-left corner, proceed row by row, from left to right and top to bottom, to arrange the parts.\n\n"
        "The output should be a string of numbers, separated by a comma, where each number corresponds to the original position "
        f'of the patches in the restored image. For instance, "{SSL4RL_ORDERS[math.isqrt(size.patches)]}" would indicate the '
        "positions of the patches in the correct order.\n\n"
        "Before providing the final result, you must reason through the puzzle step by step. "
        "Consider the relative placement of each part and how they fit together.\n\n"
        "Your answer should strictly follow this format:\n\n"
        "<think>your step-by-step reasoning here</think> <answer>order</answer>"
    )

"""Prompt and rewards of MAYE as published, faults included (github.com/GAIR-NLP/MAYE, commit af35b9a: `maye/rlhf/rewards.py`,
`maye/datasets/math.py`, `recipes/full_ppo_vllm_distributed.py`).

Ma et al. 2025, "Rethinking RL Scaling for Vision Language Models: A Transparent, From-Scratch Framework and Comprehensive
Evaluation Scheme".
"""

from __future__ import annotations

import re

from mmrl import Case, Score
from mmrl.api.types import Status
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import MAX_LENGTH

PROMPT = (
    "\nSolve the above mathematics problem, write out the solution process according to the question, and use the same LaTeX "
    "format as the question in the solution process. Please display the final answer in the format \\boxed{}."
)
"""The text behind every question, word for word. It asks for no thoughts in tags, though the format reward pays for them."""
CHINESE = 0.1
"""Cost of an answer that is all Chinese."""
UNFINISHED = -0.1
"""All that an answer without an end earns."""
TOLERANCE = 1e-2 * 1.01
MAX_PARTS = 200
_CHARACTER = re.compile("[\u4e00-\u9fff]")
_SENTENCE = re.compile(r"(?<!\d)[.!?](?!\d)")
_NUMBER = re.compile(r"\\boxed\{(\d*?)(?:\^|$)")
_THOUGHT = "<think>", "</think>"
_DEGREES = (
    *("\\text{circ}", "\\text{degree}", "\\{circ}", "\\{degree}", "\\textcirc", "\\textdegree", "\\text{circles}"),
    *("\\textcircles", "\\text{o}", "\\texto", "\\bigcirc", "\\bullet"),
)
_SPELLINGS = (
    *((degree, "\\circ") for degree in _DEGREES),
    *(("{sqrt}", "\\sqrt"), ("{radical}", "\\sqrt"), ("{°}", "\\circ"), ("\\,\\text{cm}", "cm")),
)


def reward(case: Case) -> Score:
    """MAYE's reward: 1 for a right answer, 1 for exactly one `<think>...</think>`, less 0.1 times the share of Chinese
    characters; -0.1 in place of all that for an answer that was cut off, or is empty.

    The answer is right if `agrees` finds its last sentence with "boxed" equal to the truth's; `case.answer` is the truth, in a
    box or not. Known exploits, as published: a thought without an answer earns 1; numbers are compared up to "^" or the end.
    """
    text = case.completion[:MAX_LENGTH]
    parts = {"accuracy": float(agrees(text, _boxed(str(case.answer)))), "format": float(_thoughts(text) == 1)}
    parts["language"] = -CHINESE * len(_CHARACTER.findall(text)) / len(text) if text else 0.0
    if not text or (case.rollout is not None and case.rollout.status is Status.TRUNCATED_LENGTH):
        return Score(UNFINISHED, parts=parts, detail="no end, or no answer")
    return Score(sum(parts.values()), parts=parts)


def accuracy(case: Case) -> float:
    """Whether the answer is right, as in `reward`: the metric of evaluations."""
    return float(agrees(case.completion[:MAX_LENGTH], _boxed(str(case.answer))))


def agrees(text: str, truth: str) -> bool:
    """MAYE's comparison: of the last sentences with "boxed", after its changes of spelling. They are equal by math-verify; or
    part by part between commas, in any order, where numbers may differ by 0.01 or by a factor of 100; or in the number that opens
    their boxes and ends at "^".

    Known exploits, as published: where neither has a box, any answer is right. Left out: sympy's comparison of parts, which the
    published code makes of the parts between commas of a box only.
    """
    given, wanted = _last_sentence(text), _last_sentence(truth)
    return _equal_by_math(given, wanted) or _equal_by_parts(given, wanted) or _equal_numbers(given, wanted)


def written(answer: str, thought: str = "I look at the picture.") -> str:
    """A completion with the highest reward."""
    return f"<think>{thought}</think>\n{_boxed(answer)}"


def _boxed(answer: str) -> str:
    return answer if "boxed" in answer else f"\\boxed{{{answer}}}"


def _thoughts(text: str) -> int:
    """The number of `<think>.*?</think>`, one after the other."""
    count, at = 0, text.find(_THOUGHT[0])
    while at >= 0 and (end := text.find(_THOUGHT[1], at + len(_THOUGHT[0]))) >= 0:
        count, at = count + 1, text.find(_THOUGHT[0], end + len(_THOUGHT[1]))
    return count


def _last_sentence(text: str) -> str:
    found = next((sentence.strip() for sentence in reversed(_SENTENCE.split(text)) if "boxed" in sentence), "")
    for spelling, sign in _SPELLINGS:
        found = found.replace(spelling, sign)
    return found


@mathematics.unequal_on_error
def _equal_by_math(given: str, wanted: str) -> bool:
    return mathematics.verify_parsed(mathematics.parse_math(given), mathematics.parse_math(wanted))


def _equal_by_parts(given: str, wanted: str) -> bool:
    if given == wanted:
        return True
    left, right = (_parts(text) for text in (given, wanted))
    if len(left) != len(right) or len(left) > MAX_PARTS:
        return False
    for one in left:
        match = next((i for i, other in enumerate(right) if _same(one, other)), None)
        if match is None:
            return False
        del right[match]
    return True


def _parts(text: str) -> list[str]:
    """The parts between commas outside of round and square brackets, without Chinese; each plus-minus makes two."""
    text = text if text and not _CHARACTER.sub("", text) else _CHARACTER.sub("", text)
    if text.count("<") == 2:
        first, _, last = text.split("<")
        text = f"({first}, {last})"
    found, depth, start = [], 0, 0
    for i, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    if start < len(text):
        found.append(text[start:].strip())
    return [each for part in found for each in ([part.replace("\\pm", s) for s in "+-"] if "\\pm" in part else [part])]


def _same(one: str, other: str) -> bool:
    if one == other:
        return bool(one)
    try:
        reference, value = float(one), float(other)
    except ValueError:
        return False
    return any(abs(reference * factor - value) <= TOLERANCE for factor in (0.01, 1, 100))


def _equal_numbers(given: str, wanted: str) -> bool:
    left, right = _NUMBER.search(given), _NUMBER.search(wanted)
    return bool(left and right and left[1] == right[1])

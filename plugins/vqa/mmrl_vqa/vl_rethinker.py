"""The reward of VL-Rethinker as published, faults included (github.com/TIGER-AI-Lab/VL-Rethinker, commit dd2c17d:
`openrlhf/trainer/ppo_utils/experience_maker.py`).

Wang et al., "VL-Rethinker: Incentivizing Self-Reflection of Vision-Language Models with Reinforcement Learning", arXiv
2504.08837.
"""

from __future__ import annotations

from typing import Any

from mmrl import Case, Score
from mmrl.api.types import Status
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag_on_line
from mmrl_vqa.easyr1 import boxed

END = "<|im_end|>"
"""The token that ends an answer; its text is a part of what is read there."""
RECONSIDERED, INVALID, COST = 1.1, -0.1, 0.2
"""What a right answer with one or two reconsiderations earns, what one without an end does, and the cost of each of many
reconsiderations."""
RETHOUGHT = "rethought"
"""The key in `Prompt.meta` of an answer that was forced to rethink, by the sampling rule `vqa/forced-rethinking`."""
MOST = 5
"""Most occurrences of "wait" in a valid answer."""
LONGEST = 400
"""Characters of a box that is compared: math-verify takes seconds for longer ones, for which it has a timeout there."""
_LAST = "Now everything looks fine. Solution finished."
_LETTERS = "ABCDEFGHIJK"
_BOX = "\\boxed{"
_SPELLINGS = (("dfrac", "frac"), ("\\text", ""), ("\\varnothing", "\\emptyset"), ("minutes", ""), ("cm", ""))


def reward(case: Case) -> Score:
    """VL-Rethinker's reward: 1 for a right answer, 1.1 if it also says "wait," or "wait a" or "alternatively" once or twice, and
    0.2 less than 1 for each of three and more, down to -0.1. A wrong one earns 0. An answer that was cut off, or says "wait" more
    than five times, earns -0.1. Of an answer that was forced to rethink, only the last counts against it.

    Known exploits, as published: one or two reconsiderations earn 1.1 even in an answer that was cut off; those of `accuracy`.
    """
    text = case.completion[:MAX_LENGTH]
    right, times, lower = accuracy(case), reconsiderations(text), text.lower()
    ended = case.status is not Status.TRUNCATED_LENGTH
    paid = right if ended and lower.count("wait") <= MOST else INVALID
    if right and not case.meta.get(RETHOUGHT):
        paid = RECONSIDERED if 0 < times < 3 else max(paid - COST * times, INVALID)
    return Score(paid, parts={"accuracy": right, "reconsiderations": float(times)})


def accuracy(case: Case) -> float:
    """Whether the answer is right: the text from the last `\\boxed` on, else the first answer tag that closes on its line, else
    what follows the last "Answer:", else the whole text equals the truth by math-verify. A truth that is a letter from A to K
    need only be what the box begins with.

    Known exploits, as published: "\\boxed{Apple}" is right for A. Where nothing else is right, a letter is looked for at the
    eighth sign of the whole text, so that "Option A is wrong" is right for A. The box is asked for, and never required.
    """
    text = case.completion[:MAX_LENGTH] + (END if case.status is not Status.TRUNCATED_LENGTH else "")
    stop = text.find(_LAST)
    if stop >= 0 and text[stop + len(_LAST) + len(END) :]:
        return 0.0
    truth = _normalised(str(case.answer))
    wanted = _parsed(truth if "\\boxed" in truth else f"{_BOX}{truth}}}")
    return float(bool(wanted) and any(_equal(_normalised(said), wanted) for said in _read(text)))


def reconsiderations(text: str) -> int:
    """How often an answer says "wait,", "wait a" or "alternatively"."""
    lower = text.lower()
    return sum(lower.count(words) for words in ("wait,", "wait a", "alternatively"))


def _read(text: str) -> list[str]:
    """What may be the answer, in the order in which it is compared."""
    found = []
    if "\\boxed" in text:
        found.append(text[text.rindex("\\boxed") :].strip())
    tagged = first_tag_on_line(text)
    if tagged is not None:
        found.append(f"{_BOX}{tagged}}}")
    if "Answer:" in text:
        found.append(f"{_BOX}{text.rpartition('Answer:')[2].strip()}}}")
    return [*found, text]


@mathematics.unequal_on_error
def _equal(said: str, wanted: list[Any]) -> bool:
    if len(wanted) > 1 and isinstance(wanted[1], str) and wanted[1] in _LETTERS:
        return said[len(_BOX) :].startswith(wanted[1])
    if len(boxed(said) or "") > LONGEST:
        return False
    return mathematics.verify_parsed(mathematics.parse_math(said), wanted)


def _parsed(truth: str) -> list[Any]:
    try:
        return mathematics.parse_math(truth)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  as published: nothing is right for a truth that can't be read
        return []


def _normalised(text: str) -> str:
    for spelling, sign in _SPELLINGS:
        text = text.replace(spelling, sign)
    return text

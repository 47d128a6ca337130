"""The form of an answer that EasyR1's rewards pay for, and with them those of PAPO, VPPO and NoisyRollout: thoughts in tags, and
then the answer in a box (github.com/hiyouga/EasyR1, `examples/reward_function/math.py`; mathruler 0.1.0,
`extract_boxed_content`)."""

from __future__ import annotations

import re

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH

BOX = "\\boxed{"
_SPACED = re.compile(r"(?<!\s)\s++(?=[<>/])|(?<=[<>/])\s++")
"""Blanks beside one of these signs. It looks at no blank twice."""


def form(case: Case) -> float:
    """1 for a completion that begins with `<think>` and has a `</think>` and then a box; blanks around `<`, `>` and `/` don't
    count, as in the code of PAPO and VPPO and not in NoisyRollout's.

    Known exploits, as published: thoughts and box may be empty, and anything may stand between and behind them, such as tags.
    """
    text = unspaced(case.completion[:MAX_LENGTH])
    end = text.find("</think>", len("<think>"))
    box = text.find(BOX, end) if end >= 0 else -1
    return float(text.startswith("<think>") and box >= 0 and text.find("}", box) >= 0)


def unspaced(text: str) -> str:
    """A text without blanks beside `<`, `>` and `/`."""
    return _SPACED.sub("", text)


def boxed(text: str) -> str | None:
    """What is in the last box, without blanks around it; None without one, or if it isn't closed."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth, start = 1, start + len(BOX)
    for place in range(start, min(len(text), start + MAX_LENGTH)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[start:place].strip()
    return None


def written(answer: str, thought: str) -> str:
    """A completion with the highest reward."""
    return f"<think>{thought}</think>\n{BOX}{answer}}}"

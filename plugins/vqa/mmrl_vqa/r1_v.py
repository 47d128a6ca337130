"""The accuracy of R1-V as published (github.com/Deep-Agent/R1-V, commit bbbbe3d: `src/r1-v/src/open_r1/grpo.py`). Its format
reward is `vqa/format@vlm-r1`, which has the same pattern.

Chen et al., "R1-V: Reinforcing Super Generalization Ability in Vision-Language Models with Less Than $3".
"""

from __future__ import annotations

from mmrl import Case
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag_on_line


def accuracy(case: Case) -> float:
    """R1-V's accuracy: math-verify finds the truth in the completion, or the first answer tag that closes on its line, else the
    whole text, is the truth letter by letter.

    Known exploits, as published: math-verify reads the whole completion, so that a number in the thought can be right for an
    answer that isn't.
    """
    text, truth = case.completion[:MAX_LENGTH], str(case.answer)
    if mathematics.answers_match(text, truth):
        return 1.0
    return float(_answered(text) == _answered(truth))


def _answered(text: str) -> str:
    found = first_tag_on_line(text)
    return (text if found is None else found).strip()

"""The rewards of Jigsaw-R1 as published, faults included (github.com/zifuwanggg/Jigsaw-R1, utils/reward.py).

Wang et al. 2025, "Jigsaw-R1: A Study of Rule-based Visual Reinforcement Learning with Jigsaw Puzzles".

All read `meta["think"]`, by default true: whether the prompt requested `<think>` and `<answer>` tags. The rewards of grids read
the puzzle's rows and columns as `meta["m"]` and `meta["n"]`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from mmrl import Case
from mmrl.api.coordinates import CoordinateFormat, convert_coordinates
from mmrl.api.verifiers.parse import first_tag

_ANSWER_AFTER_THOUGHT = re.compile(r"</think>\s*<answer>")
_BOX = re.compile(r"(?<!\d)(\d++),\s*+(\d++),\s*+(\d++),\s*+(\d+)")


# -- accuracy ---------------------------------------------------------------------------------------------------------------


def grid(case: Case) -> float:
    """Share of the positions that are right, for the answer as a list of numbers from 1, row by row.

    The first `<answer>` is read, or everything if there is none. Backticks, commas, semicolons and line breaks count as
    blanks; any other sign, a number outside the grid or a wrong count gives 0.
    Known exploits, as published: repeats are allowed, so the same number everywhere always earns 1/n; the identity earns 1/n on
    average; further answer tags are ignored; without any tag a bare answer is read.
    """
    wanted = list(case.answer)
    m, n = _grid_size(case, len(wanted))
    given = grid_of(case, m * n)
    if given is None or len(given) != len(wanted):
        return 0.0
    return sum(a == b for a, b in zip(given, wanted, strict=True)) / len(wanted)


def connections(case: Case) -> float:
    """Share of the 2mn - m - n neighbouring pairs of the answer that are neighbours, in the same order, in the true answer too.

    Reads like `grid`. `meta["forward"]`, by default true, says which of the two permutations the answer is. Known exploits, as
    published: only neighbours count, not positions, so swapped rows keep most of the score; repeats are allowed. If `forward` is
    false, positions and patches are mixed up, and a right answer may score below 1.
    """
    wanted = list(case.answer)
    m, n = _grid_size(case, len(wanted))
    given = grid_of(case, m * n)
    if given is None or len(given) != len(wanted) or m * n != len(wanted) or m * n == 1:
        return 0.0
    if case.meta.get("forward", True):
        place = {patch: slot for slot, patch in enumerate(wanted)}
    else:
        place = {patch + 1: slot - 1 for patch, slot in enumerate(wanted)}
    right = 0
    for row in range(m):
        for column in range(n):
            here = place[given[row * n + column]]
            if column + 1 < n:
                beside = place[given[row * n + column + 1]]
                right += here // n == beside // n and beside % n - here % n == 1
            if row + 1 < m:
                below = place[given[(row + 1) * n + column]]
                right += here % n == below % n and below // n - here // n == 1
    return right / (2 * m * n - m - n)


def letter(case: Case) -> float:
    """1 when the LAST capital A to Z of the first `<answer>`, or of everything if there is none, is the answer's letter.

    Without a capital the text itself is compared, in lower case.
    Known exploits, as published: any prose passes that ends on the letter, and a list of all letters scores its last; on the
    other hand "B. Wash the cup" is W.
    """
    return float(_letter_of(case).lower() == str(case.answer).lower())


def digit(case: Case) -> float:
    """1 when the first run of digits in the first `<answer>`, or in everything if there is none, is the answer's number.

    Published through math-verify, which reads ASCII digits only. Without any digit the answer is wrong here; math-verify would
    also take algebra, such as `$x/x$` for 1.
    Known exploits, as published: only the first number counts, so "3, or 5" is 3, and "-3" and "3.7" are 3 as well.
    """
    found = re.search(r"\d+", _content(case))
    if not found or not found[0].isascii():
        return 0.0
    return float((found[0].lstrip("0") or "0") == (str(case.answer).strip().lstrip("0") or "0"))


def box(case: Case) -> float:
    """IoU of the first `a, b, c, d` of the first `<answer>` with the answer, a box in pixels of the first image.

    Compared in the pixels that the model saw. Overlaps are counted as VLM-R1 does: one that is at most a pixel wide or high is
    none. Digits only: signs and fractions are ignored.
    Known exploits, as published: only the first four numbers count.
    """
    found = _box_of(case)
    return 0.0 if found is None else overlap(found, _seen(case))


def point(case: Case) -> float:
    """1 when the centre of the first `a, b, c, d` lies in the answer's box, its border included: the metric for ScreenSpot.

    Coordinate formats as in `box`, which is the reward of the published training for these questions too.
    Known exploits, as published: the whole picture, if the target is in the middle.
    """
    found = _box_of(case)
    if found is None:
        return 0.0
    (left, top, right, bottom), (x1, y1, x2, y2) = found, _seen(case)
    return float(x1 <= (left + right) / 2 <= x2 and y1 <= (top + bottom) / 2 <= y2)


# -- format -----------------------------------------------------------------------------------------------------------------


def grid_format(case: Case) -> float:
    """1 for a grid of m x n numbers from 1 to mn; with `meta["think"]`, in the tags and nothing around them.

    Known exploits, as published: repeats are allowed, the thought may be empty, a tag inside the thought is the one that is read.
    """
    m, n = _grid_size(case, len(case.answer or ()))
    given = grid_of(case, m * n) if _in_form(case) else None
    return float(given is not None and len(given) == m * n)


def letter_format(case: Case) -> float:
    """1 when the answer is a capital, or has one; without `meta["think"]` it must be that one character and nothing else.

    Known exploits, as published: in tags any prose with a capital in it passes; without tags other alphabets pass too.
    """
    if not case.meta.get("think", True):
        return float(_is_capital(case.completion))
    return float(_in_form(case) and _is_capital(_letter_of(case)))


def digit_format(case: Case) -> float:
    """1 when the answer has a number; without `meta["think"]` it must be digits and nothing else, by `str.isdigit`.

    Known exploits, as published: in tags any prose with a digit in it passes; other scripts' digits and superscripts pass.
    """
    if not case.meta.get("think", True):
        return float(case.completion.isdigit())
    content = _content(case)
    return float(_in_form(case) and (bool(re.search(r"\d", content)) or content.isdigit()))


def box_format(case: Case) -> float:
    """1 when four whole numbers with commas between them occur in the answer; with `meta["think"]`, in the tags.

    Known exploits, as published: any four numbers will do.
    """
    return float(_in_form(case) and _BOX.search(_content(case)) is not None)


# -- reading ----------------------------------------------------------------------------------------------------------------


def grid_of(case: Case, count: int) -> list[int] | None:
    """The numbers of a grid answer; None if there is something else among them, one is not from 1 to `count`, or there are too
    many."""
    text = re.sub(r"[`,;\n]", " ", _content(case))
    pieces = re.sub(r"\s{2,}", " ", text).strip().split(" ")
    if len(pieces) > count or not all(re.fullmatch(r"[0-9]+", piece) and 1 <= _number(piece) <= count for piece in pieces):
        return None
    return [_number(piece) for piece in pieces]


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """IoU by VLM-R1's rule, at least 0.

    Two boxes without an area, or one in reverse as large as the true one, have no union: the published code divides by 0 and ends
    its run. Numbers of hundreds of digits are infinite, and its reward no number. Both are wrong answers: 0.
    """
    left, top = max(a[0], b[0]), max(a[1], b[1])
    right, bottom = min(a[2] - 1, b[2] - 1), min(a[3] - 1, b[3] - 1)
    inside = (right - left + 1) * (bottom - top + 1) if left < right and top < bottom else 0.0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inside
    value = inside / union if union and math.isfinite(union) else 0.0
    return value if value > 0 else 0.0  # boxes in reverse make a negative union, and nothing inside


def _content(case: Case) -> str:
    """The text that is searched for the answer: the first tag if tags were requested, else everything; stripped."""
    tagged = first_tag(case.completion) if case.meta.get("think", True) else None
    return (case.completion if tagged is None else tagged).strip()


def _in_form(case: Case) -> bool:
    """Whether `<think>.*?</think>\\s*<answer>.*?</answer>`, searched with line breaks, finds the whole completion at once: a
    second answer tag fails. True if no tags were requested."""
    text = case.completion
    if not case.meta.get("think", True):
        return True
    turn = _ANSWER_AFTER_THOUGHT.search(text, len("<think>")) if text.startswith("<think>") else None
    return turn is not None and text.find("</answer>", turn.end()) == len(text) - len("</answer>")


def _letter_of(case: Case) -> str:
    content = _content(case)[::-1]
    found = re.search(r"[A-Z]", content)
    return found[0] if found else content


def _is_capital(text: str) -> bool:
    return len(text) == 1 and text.isupper()


def _grid_size(case: Case, count: int) -> tuple[int, int]:
    """(rows, columns) of the puzzle; a column of `count` patches if meta has no size."""
    return int(case.meta.get("m") or count), int(case.meta.get("n") or 1)


def _number(digits: str) -> int:
    """A run of ASCII digits; 0, which no grid has, for one that is longer than any grid's."""
    plain = digits.lstrip("0")
    return int(plain) if 0 < len(plain) < 10 else 0


def _box_of(case: Case) -> tuple[float, ...] | None:
    found = _BOX.search(_content(case))
    numbers = tuple(float(g) for g in found.groups()) if found else None
    return numbers if numbers and all(map(math.isfinite, numbers)) else None


def _seen(case: Case) -> Any:
    """The answer's box in the pixels that the model saw; in those of the image if the model's are unknown."""
    box = [float(v) for v in case.answer]
    if not case.image_sizes:
        return tuple(box)
    sizes = (case.model_sizes or case.image_sizes)[0]
    return convert_coordinates(box, CoordinateFormat.PIXELS, CoordinateFormat.MODEL_PIXELS, case.image_sizes[0], sizes)

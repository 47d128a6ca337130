"""The rewards of VLM-R1 for questions, as published, faults included (github.com/om-ai-lab/VLM-R1, commit 9005247).

Shen et al., "VLM-R1: A Stable and Generalizable R1-style Large Vision-Language Model". Its data name a method in each row,
`accu_reward_method`; `answer` here uses it if a row has it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import json_repair
import Levenshtein

from mmrl import Case, Conversation
from mmrl.api.verifiers import mathematics
from mmrl.api.verifiers.parse import first_tag, first_tag_on_line, has_think_answer_format, last_tag, literal

WORDS = 6
"""Length of the word runs that `repetition` counts in prose."""
LONGEST = 1024
"""Tokens at which `length` is lowest."""
MAX_REPAIR = 2_048
"""Largest number of characters for json_repair, about thirty boxes: it takes quadratic time, a second for the worst texts."""
_LETTER = re.compile(r"(?<![A-Z])([A-Z])(?=[.,?!:;]|$)")
_HINTS = tuple(
    word.upper()
    for word in (
        *("答案", "选择", "正确", "是", "对", "answer", "correct", "choose", "select", "right"),
        *("认为", "应该", "觉得", "think", "believe", "should"),
    )
)
_BOXES = re.compile(r"\[\s*\{")
_BOXES_END = re.compile(r"\}\s*\]")


def answer(case: Case) -> float:
    """VLM-R1's accuracy: the method that `meta["accu_reward_method"]` names (mcq, yes_no, all_match), else the default one.

    The default compares the last `<answer>`, or the whole text, with the truth: math-verify calls them equal, or a truth with a
    digit equals it as a float (if one is not a number, their Levenshtein ratio counts), or a truth with a letter is chosen as
    in `choice`, or the Levenshtein ratio of the cleaned texts counts.
    Known exploits, as published: "12 window" is right for "12 apples" because the numbers agree; any text gets the ratio of its
    letters, so that "golden" earns most of "golden retriever"; the last of many answer tags counts.
    """
    method = case.meta.get("accu_reward_method")
    if method == "mcq":
        return choice(case)
    if method == "yes_no":
        return yes_no(case)
    if method == "all_match":
        return match(case)
    truth, given = _truth(case), _last(case.completion)
    if mathematics.answers_match(given, truth):
        return 1.0
    if re.search(r"\d", truth):
        value = _as_floats(given, truth)
        return value if value is not None else Levenshtein.ratio(clean(given), clean(truth))
    if wanted := letter(truth):
        return float(letter(given) == wanted)
    return Levenshtein.ratio(clean(given), clean(truth))


def choice(case: Case) -> float:
    """VLM-R1's `mcq`: the letter that `letter` finds in the first `<answer>`, or the whole text, is that of the truth.

    Known exploits, as published: "Both A. and E." is right for E; "(A)", "**A**" and "A cat" hold no letter and are wrong; so is
    a truth without a letter.
    """
    given = letter(_first(case.completion))
    return float(given is not None and given == letter(_truth(case)))


def yes_no(case: Case) -> float:
    """VLM-R1's `yes_no`: the first "yes" or "no" among the letters of the first `<answer>`, or of the whole text, is the truth's.

    Known exploits, as published: "I know" contains a no and "eyes" a yes; if neither side has one, everything is right.
    """
    truth, given = _truth(case, lower=True), _first(case.completion.lower())
    return float(_yes_or_no(given) == _yes_or_no(truth))


def match(case: Case) -> float:
    """VLM-R1's `all_match`: the last `<answer>`, or the whole text, equals the truth when both are cleaned.

    Known exploits: none; an empty truth is matched by an empty answer.
    """
    return float(clean(case.completion) == clean(_text(case)))


def form(case: Case) -> float:
    """VLM-R1's format: `<think>.*?</think>\\s*<answer>.*?</answer>` matches the whole completion, line breaks included.

    Known exploits, as published: empty blocks and any number of further tags inside pass.
    """
    return float(has_think_answer_format(case.completion))


def length(case: Case) -> float:
    """VLM-R1's cosine length reward: 1 for no tokens, falling to 0.5 at 1,024.

    Tokens are those that were sampled, without the end token; without a rollout, words.
    Known exploits, as published: a wrong answer earns as much as a right one, because the accuracy is set to 1 before it is read;
    beyond 1,024 tokens the cosine rises again, to 1 at 2,048.
    """
    tokens = len(case.completion.split())
    if isinstance(case.rollout, Conversation):
        turn = next((t for t in reversed(case.rollout.turns) if t.token_ids), None)
        tokens = 0 if turn is None else len(turn.token_ids) - (not case.status.is_truncated)
    return 1.0 - 0.5 * (1 - math.cos(tokens * math.pi / LONGEST)) / 2


def repetition(case: Case) -> float:
    """VLM-R1's repetition penalty: 0, or down to -1 for the share of boxes, or of runs of six words, that occurred before.

    Boxes are the objects with `bbox_2d` and `label` in the first ```json block, else the first ``` block, else the first list of
    such; a list without any has nothing to repeat. All other text is prose. A list that is no JSON is mended by json_repair, as
    published; one of more than `MAX_REPAIR` characters is read as Python reads it, or else as prose.
    Known exploits, as published: one list of boxes hides any repetition around it, and fewer than six words are never too many.
    """
    text = case.completion
    boxes = _boxes(text)
    if boxes is not None:
        return _repeated(boxes)
    words = text.lower().split()
    return _repeated(zip(*(words[i:] for i in range(WORDS)), strict=False))


def letter(text: str) -> str | None:
    """The letter that VLM-R1 reads from a text: in capitals, one that follows no letter and precedes a stop or the end.

    Of several, each occurrence earns the points of the letter's first one again: for hints around it, for the text's last third,
    for a stop behind it. The letter with the most points wins, the first of equal ones.
    """
    text = re.sub(r"\s+", " ", text.upper())
    times = Counter(_LETTER.findall(text))
    if len(times) < 2:
        return next(iter(times), None)
    points = {one: count * _points(text, text.find(one)) for one, count in times.items()}
    return max(points, key=points.__getitem__)


def clean(text: str) -> str:
    """The last `<answer>`, or all of it, in VLM-R1's form for comparisons: one line, lower case, no full stops at the end."""
    found = last_tag(text)
    text = text if found is None else found
    for end in "\n\r":
        text = re.sub(rf"(?<!\s){end}", " ", re.sub(rf"(?<=\s){end}", "", text))
    return text.strip().rstrip(".").lower()


def _points(text: str, at: int) -> int:
    around = text[max(0, at - 20) : at + 20]
    late, stopped = at > len(text) * 0.7, at < len(text) - 1 and text[at + 1] in "。.!！,，"
    return sum(hint in around for hint in _HINTS) + 2 * late + stopped


def _text(case: Case) -> str:
    return "" if case.answer is None else str(case.answer)


def _truth(case: Case, lower: bool = False) -> str:
    """The truth without a tag around it, which must close on its line."""
    text = _text(case).lower() if lower else _text(case)
    found = first_tag_on_line(text)
    return (text if found is None else found).strip()


def _first(text: str) -> str:
    found = first_tag(text)
    return (text if found is None else found).strip()


def _last(text: str) -> str:
    found = last_tag(text)
    return (text if found is None else found).strip()


def _as_floats(given: str, truth: str) -> float | None:
    try:
        return float(float(clean(given)) == float(clean(truth)))
    except ValueError:
        return None


def _yes_or_no(text: str) -> str:
    places = {word: at for word in ("yes", "no") if (at := text.find(word)) >= 0}
    return min(places, key=places.__getitem__, default="")


def _repeated(things: Iterable[Any]) -> float:
    counts = Counter(things)
    total = counts.total()
    return -(1 - len(counts) / total) if total else 0.0


def _boxes(text: str) -> list[str] | None:
    """The boxes in the list of boxes of a text, as strings; None without such a list."""
    block = _fenced(text, "```json")
    if block is None:
        block = _fenced(text, "```") or _bare(text)
    data = _loads(block) if block else None
    if not data or not isinstance(data, list) or not all(isinstance(item, dict | list | str) for item in data):
        return None
    return [
        f"{item['bbox_2d']}_{item['label']}" for item in data if isinstance(item, dict) and {"bbox_2d", "label"} <= item.keys()
    ]


def _fenced(text: str, opening: str) -> str | None:
    start = text.find(opening)
    end = text.find("```", start + len(opening)) if start >= 0 else -1
    return text[start + len(opening) : end].strip() if end >= 0 else None


def _bare(text: str) -> str | None:
    r"""The first match of `\[\s*{.*?"bbox_2d".*?"label".*?}\s*\]`, line breaks included. If there is none from the first possible
    beginning, there is none from any other."""
    start = _BOXES.search(text)
    box = text.find('"bbox_2d"', start.end()) if start else -1
    label = text.find('"label"', box + len('"bbox_2d"')) if box >= 0 else -1
    end = _BOXES_END.search(text, label + len('"label"')) if label >= 0 else None
    return text[start.start() : end.end()] if start and end else None


def _loads(text: str) -> Any:
    """A text as JSON, mended where it isn't, as published; None if it can't be."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    except (ValueError, RecursionError):  # a number of thousands of digits; nested too deeply
        return None
    try:
        return json.loads(json_repair.repair_json(text)) if len(text) <= MAX_REPAIR else literal(text)
    except Exception:  # noqa: BLE001  the published rule: what can't be mended is prose
        return None

"""Our verifiers for clips: times, orders, counts, positions; and the form of answers.

Times are in seconds from the clip's start. The answer is read from the one `<answer>` tag, if there is any or the task requests
tags, else it is the whole completion. `answers.py` has the verifiers for options, numbers and texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

from mmrl import Case, Score
from mmrl.api.tasks.option_checks import check_choice
from mmrl.api.verifiers.parse import only_answer, without_thinking
from mmrl_video import reading, spans, tracks
from mmrl_video.answers import accepted, picked
from mmrl_video.spans import Span

# -- when -------------------------------------------------------------------------------------------------------------------


def tiou(case: Case, threshold: float = 0.0, graded: bool = True) -> Score:
    """The temporal IoU of the answered span and the true one, 0 to 1; of several true ones, that of their union.

    `case.answer`: `[start, end]`, a list of such, or an object with them as `span`, `spans` or `glue`. If there is one true span,
    one must be answered. With `meta["nearest"]` one must be answered also of several, and the one that it overlaps most counts;
    with `meta["ranked"]` the same is done with the first of those that are answered.
    Divided by the union, not the hull: for single spans these are the same if they overlap. threshold: an
    IoU below it counts 0. graded: if false, every IoU from the threshold on counts 1.

    Known exploits: the whole clip earns the event's share of it, unless `threshold` is above that (`video/anomaly` subtracts it).
    Reversed, empty and negative spans, and several for one, are no answer.
    """
    true, nearest = true_spans(case.answer), case.meta.get("nearest") or case.meta.get("ranked")
    found, why = _given_spans(case)
    if found is None:
        return Score(0.0, detail=why)
    value = max(spans.iou(found, [one]) for one in true) if nearest else spans.iou(found, true)
    kept = value >= threshold and value > 0
    return Score(float(kept) * (value if graded else 1.0), detail=f"IoU {value:.3f}")


def anomaly(case: Case) -> Score:
    """The temporal IoU beyond what the whole clip would earn, s: (IoU - s) / (1 - s), and 0 below. s is the truth's share of
    `meta["duration"]`. So the whole clip earns nothing.

    Known exploits: a half of the clip that contains the event earns about s, which is little for a short event.
    """
    true = true_spans(case.answer)
    found, why = _given_spans(case)
    if found is None:
        return Score(0.0, detail=why)
    value, share = spans.iou(found, true), spans.total(spans.merged(true)) / float(case.meta["duration"])
    beyond = (value - share) / (1 - share) if share < 1 else value
    return Score(min(1.0, max(0.0, beyond)), detail=f"IoU {value:.3f}, the whole clip {share:.3f}")


def true_spans(answer: Any) -> list[Span]:
    """The true spans of an answer. Raises ValueError without any, and for a reversed, empty or negative one."""
    spans = answer
    if isinstance(answer, Mapping):
        spans = next((answer[key] for key in reading.LISTS if key in answer), None)
    listed = spans if isinstance(spans, Sequence) and spans and isinstance(spans[0], Sequence) else [spans]
    try:
        found = [(float(start), float(end)) for start, end in listed]
    except (TypeError, ValueError):
        found = []
    if not found or not all(0 <= start < end < float("inf") for start, end in found):
        why = f"the answer {answer!r:.80} is not a span of time"
        if isinstance(answer, Mapping) and all(str(key).isdigit() for key in answer):  # as `highlight` has them
            why += ": scores of clips are for video/hit@qvhighlights, which `verifiers` of the task must name"
        raise ValueError(why)
    return found


def _given_spans(case: Case) -> tuple[list[Span] | None, str]:
    answer, why = reading.said(case)
    if answer is None:
        return None, why
    if case.meta.get("ranked"):
        found, why = _fitting(reading.spans(answer), reading.MOST)
        return (found[:1] if found else None), why
    return _fitting(reading.spans(answer), 1 if case.meta.get("nearest") else len(true_spans(case.answer)))


def _fitting(found: list[Span] | None, many: int) -> tuple[list[Span] | None, str]:
    """The spans, if they are a possible answer to a question with `many` true ones."""
    if found is None:
        return None, "no span of time from a start to a later end"
    return (None, f"{len(found)} spans for one") if many == 1 < len(found) else (found, "")


# -- how often, in which order ----------------------------------------------------------------------------------------------


def count(case: Case, graded: bool = True) -> Score:
    """The mean over the counts of 1 minus the relative error, at least 0: 1 at the truth, falling linearly to 0 at an error of
    100%. For a true count of 0, only 0 is right.

    `case.answer`: a number, a list of them, or an object of names and numbers; then the answer may use the names. It must have as
    many counts. graded: if false, 1 only if all are right.

    Known exploits: middle counts earn much: always 2 for 1, 2 and 3 earns 0.56. Compare with that.
    """
    answer, why = reading.said(case)
    if answer is None:
        return Score(0.0, detail=why)
    names, true = _true_counts(case.answer)
    found = reading.counts(answer, names, len(true))
    if found is None:
        return Score(0.0, detail=f"not {len(true)} counts: {answer.strip()[:60]!r}")
    off = [abs(a - b) / max(b, 1) for a, b in zip(found, true, strict=True)]
    value = sum(max(0.0, 1.0 - one) for one in off) / len(off)
    return Score(value if graded else float(found == true), detail=f"counted {str(found)[:60]}")


def _true_counts(answer: Any) -> tuple[list[str], list[int]]:
    if isinstance(answer, Mapping):
        return [str(name) for name in answer], [int(one) for one in answer.values()]
    return [], [int(one) for one in (answer if isinstance(answer, list | tuple) else [answer])]


def order(case: Case, credit: Literal["pairs", "places", "none"] = "pairs") -> Score:
    """1 for the right order of the parts, `case.answer`, a list or a text of characters such as `312`; less for another
    permutation of them, 0 otherwise.

    credit: of other permutations. "pairs", Kendall's tau: the share of pairs in the right order minus that of the others, at
    least 0. "places", Spearman's footrule, as in VideoSSR: 1 minus the sum of the parts' distances over its maximum. "none": 0.

    Known exploits: with three parts any permutation earns 0.28 by "pairs" and 0.33 by "places" on average.
    """
    check_choice("credit", credit, ("pairs", "places", "none"))
    answer, why = reading.said(case)
    if answer is None:
        return Score(0.0, detail=why)
    true = [str(sign).upper() for sign in _signs(case.answer)]
    found = reading.order(answer, true)
    if found is None:
        return Score(0.0, detail=f"no order of {len(true)} parts: {answer.strip()[:60]!r}")
    return Score(
        float(found == true) if credit == "none" else CREDITS[credit](found, true), detail=f"read {' '.join(found)[:60]}"
    )


def kendall(found: Sequence[str], true: Sequence[str]) -> float:
    """Kendall's tau of two orders of the same characters, at least 0: 1 minus twice the share of reversed pairs."""
    place = {sign: at for at, sign in enumerate(found)}
    pairs = list(combinations(true, 2))
    wrong = sum(place[a] > place[b] for a, b in pairs)
    return max(0.0, 1.0 - 2 * wrong / len(pairs)) if pairs else 1.0


def footrule(found: Sequence[str], true: Sequence[str]) -> float:
    """1 minus the sum of the characters' distances over its maximum, n * n // 2."""
    off = sum(abs(found.index(sign) - at) for at, sign in enumerate(true))
    return 1.0 - off / (len(true) ** 2 // 2) if len(true) > 1 else 1.0


CREDITS: dict[str, Callable[[Sequence[str], Sequence[str]], float]] = {"pairs": kendall, "places": footrule}


def _signs(answer: Any) -> list[str]:
    if not isinstance(answer, str):
        return [str(one) for one in answer]
    split = answer.replace(",", " ").split()
    return list(split[0]) if len(split) == 1 else split


# -- where, and an answer with its time -------------------------------------------------------------------------------------


def tracking(case: Case) -> Score:
    """The mean IoU of the boxes of an object over time, 0 to 1: each is compared with the true one at its time, or in order.

    `case.answer`: a list of boxes, `[x1, y1, x2, y2]` in pixels of the clip, or of `{"time", "bbox_2d"}`. Superfluous and missing
    boxes lower the value. The first `meta["shown"]` boxes, which are in the prompt, earn nothing.

    Known exploits: the same box at all times earns much if little moves.
    """
    answer, why = reading.said(case)
    if answer is None:
        return Score(0.0, detail=why)
    found = tracks.placed(answer)
    if found is None:
        return Score(0.0, detail="no list of boxes")
    true = tracks.truth(case.answer, case)
    value = tracks.agreement(found, true, int(case.meta.get("shown", 0)))
    return Score(value, detail=f"mean IoU {value:.3f}, {len(found)} boxes, {len(true)} true ones")


def grounded_choice(case: Case, choice: float = 0.5) -> Score:
    """An option and its time: `choice` for the right letter, and the rest times the temporal IoU of the span; 0 if the letter is
    wrong, whatever the span is.

    `case.answer`: `{"answer": "B", "span": [start, end]}`, or with `spans` or `glue`. The answer is `B, 12.5 to 17`, JSON with
    `answer` and `span`, or as in VideoChat-R1 with the spans in a separate `<glue>` tag. Known exploits: a guessed letter alone
    earns `choice` times its probability.
    """
    answer, why = reading.said(case)
    if answer is None:
        return Score(0.0, detail=why)
    letter, found = _letter_and_spans(case, answer)
    true = true_spans(case.answer)
    right = picked(letter, str(case.answer["answer"]), case.meta.get("options", ())).value
    kept, _ = _fitting(found, len(true))
    value = spans.iou(kept, true) if kept else 0.0
    total = choice + (1 - choice) * value if right else 0.0
    return Score(total, parts={"choice": float(right or 0), "tiou": value}, detail=f"{letter.strip()[:20]!r}, IoU {value:.3f}")


def _letter_and_spans(case: Case, answer: str) -> tuple[str, list[Span] | None]:
    """(text with the letter, spans) of an answer."""
    if "<glue>" in without_thinking(case.completion):
        inside, _ = only_answer(case.completion, "glue")
        return answer.partition("<glue>")[0], reading.spans(inside or "")
    value = reading.only_json(answer)
    if isinstance(value, Mapping):
        letter = next((value[key] for key in ("answer", "choice", "option") if key in value), "")
        return str(letter)[:100], reading.spans(answer)
    if len(answer) > reading.LONGEST:
        return "", None
    cut = next((at for at, sign in enumerate(answer) if sign.isdigit()), len(answer))
    while cut and answer[cut - 1] in "-\u2212.([{":
        cut -= 1
    words = answer[:cut].rstrip(" ,;:.-\n").split()
    letter = " ".join(words[:-1] if words and words[-1].casefold() in ("from", "between", "at") else words)
    return letter.rstrip(",;:"), reading.spans(answer[cut:])


# -- form -------------------------------------------------------------------------------------------------------------------


def form(case: Case) -> Score:
    """1 when the completion has the requested form: `meta["style"]` is short, json or tags, `meta["asks"]` is span, spans,
    counts, order, choice, number, ratings, boxes, grounded-choice or text. A text is one line with at most two more than twice
    the words of an accepted one, in ASCII if that is, and not a question unless that is one. Without `asks` the answer is not
    checked.

    tags: one thought and one answer, neither empty, each in its tag, and nothing else. json: JSON and nothing else. short: the
    answer alone, without tags, JSON objects or fences.

    Known exploits: correctness is not checked; combine it with a reward that does.
    """
    style, asks = case.meta.get("style", "tags"), case.meta.get("asks", "")
    check_choice("style", style, ("short", "json", "tags"))
    check_choice("asks", asks, ("", *HOLDS))
    answer, why = reading.said(case)
    if answer is None:
        return Score(0.0, detail=why)
    if style == "tags" and not _two_blocks(case.completion):
        return Score(0.0, detail="not one thought, one answer and nothing else")
    if style == "json" and reading.only_json(answer) is None:
        return Score(0.0, detail="not JSON alone")
    if style == "short" and any(sign in without_thinking(case.completion) for sign in ("{", "```", "<")):
        return Score(0.0, detail="more than the answer")
    return Score(float(not asks or HOLDS[asks](case, answer)), detail=f"asked for: {asks or style}")


HOLDS: dict[str, Callable[[Case, str], bool]] = {
    "span": lambda case, answer: reading.span(answer) is not None,
    "spans": lambda case, answer: reading.spans(answer) is not None,
    "counts": lambda case, answer: reading.counts(answer, *_asked(case.answer)) is not None,
    "order": lambda case, answer: reading.order(answer, _signs(case.answer)) is not None,
    "choice": lambda case, answer: reading.letter(answer, case.meta.get("options", ())) is not None,
    "number": lambda case, answer: reading.value(answer) is not None,
    "ratings": lambda case, answer: len(reading.ratings(answer) or ()) == len(case.answer),
    "text": lambda case, answer: _is_text(answer, accepted(case)),
    "boxes": lambda case, answer: all(one.box for one in tracks.placed(answer) or [tracks.Placed(None, None)]),
    "grounded-choice": lambda case, answer: _is_grounded(case, answer),
}


def _is_text(answer: str, true: Sequence[str]) -> bool:
    """Whether a text has the form of an accepted one, right or not."""
    line = answer.strip()
    if len(line) > reading.LONGEST or "\n" in line or not any(map(str.isalnum, line)) or not line.isprintable():
        return False
    return any(
        len(line.split()) <= 2 * len(one.split()) + 2 and line.isascii() >= one.isascii() and ("?" in one or "?" not in line)
        for one in true
    )


def _asked(answer: Any) -> tuple[list[str], int]:
    names, true = _true_counts(answer)
    return names, len(true)


def _is_grounded(case: Case, answer: str) -> bool:
    letter, found = _letter_and_spans(case, answer)
    return reading.letter(letter, case.meta.get("options", ())) is not None and found is not None


def _two_blocks(completion: str) -> bool:
    """One `<think>` and one `<answer>` block, neither empty, with blanks at most around them; a `<glue>` block may follow."""
    written = completion.strip()
    if any(written.count(tag) != 1 for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return False
    thought, _, rest = written.partition("</think>")
    before, _, behind = rest.partition("<answer>")
    inside, closed, after = behind.partition("</answer>")
    glue = after.strip()
    glued = not glue or (glue.startswith("<glue>") and glue.endswith("</glue>") and glue.count("glue>") == 2)
    blocks = thought.startswith("<think>") and not before.strip() and bool(closed) and glued
    return blocks and bool(thought[7:].strip()) and bool(inside.strip())

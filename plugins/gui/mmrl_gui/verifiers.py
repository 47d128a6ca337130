"""Our verifiers. The truth is in pixels of the screen's picture, completions in the format of the policy, or of the task.

`case.answer` is, for `hit`, `iou` and `size-aware`, a box, `[x1, y1, x2, y2]`, or an object with it as `box`; for `hit` also a
list of boxes, any of which is right, or an object with the corners of a `polygon`. For `action` and `action-type` it, or
`meta["true"]`, is `{"action": ..., "box": [...] or None}`, the action in the form of `actions.as_data`. Episodes are scored by
`case.outcome`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mmrl import Case, Score
from mmrl.api.simulators.gui import Action, Box
from mmrl.api.verifiers.parse import fenced_blocks, thinks_and_answers_once
from mmrl_gui import geometry, reading
from mmrl_gui.actions import OPPOSITE, of_data, read
from mmrl_gui.calls import call_of, last_action
from mmrl_gui.coordinates import Numbers, numbers_of
from mmrl_gui.names import NoAction, offered, status

NEAR = 0.14
"""Maximal distance of a click from the true one without a box, as a share of the screen's width and height, as in the evaluations
of AndroidControl by OS-Atlas and GUI-R1."""
ENOUGH = 0.5
"""The F1 from which two texts count as the same, in the same evaluations."""
FULL = 1 + 0.25 + 0.125
"""The sum of GUI-G1's three weights (Zhou et al. 2025, section 4)."""


# -- where --------------------------------------------------------------------------------------------------------------------


def hit(case: Case, first: bool = False) -> Score:
    """1 when the one point that is answered, or the middle of the one box, lies in the true box, its edges included, or in the
    true polygon: the accuracy of ScreenSpot, its version 2 and its Pro, UI-Vision, MMBench-GUI L2 and OSWorld-G, where a point
    with two negative coordinates is right for what isn't on the screen.

    first: of a list of several points the first counts, as InfiGUI-G1 is evaluated.

    Known exploits: none; on screens with one large element its middle is a good guess. Unreadable answers and several points are
    wrong.
    """
    where, why = _where(case, first)
    if where is None:
        return Score(0.0, detail=why)
    point, box = where
    numbers = numbers_of(case)
    found = point or geometry.middle(box)  # type: ignore[arg-type]  # one of the two is there
    place = geometry.middle(numbers.pixels_of_box(box)) if box and numbers.grid else numbers.pixels(found)
    if isinstance(case.answer, Mapping) and "polygon" in case.answer:
        right = geometry.in_polygon(place, case.answer["polygon"])
    elif box and numbers.grid:
        right = any(geometry.inside(place, true) for true in _boxes(case.answer))
    else:
        right = any(numbers.hits(found, true) for true in _boxes(case.answer))
    return Score(float(right), detail="inside" if right else f"outside{on_grid(numbers.grid)}")


def iou(case: Case, threshold: float = 0.0) -> Score:
    """The IoU of the one box that is answered and the true one, 0 to 1. The truth is compared as rounded in the answer's format.

    threshold: an IoU below it counts 0.

    Known exploits: a box over the whole screen earns the element's share of it, unless `threshold` is above that.
    """
    boxes, why = _both(case)
    if boxes is None:
        return Score(0.0, detail=why)
    value = geometry.iou(*boxes)
    return Score(value if value >= threshold else 0.0, detail=f"IoU {value:.3f}")


def size_aware(case: Case) -> Score:
    """A hit of the box's middle, its IoU, and the similarity of the sizes, 0 to 1: GUI-G1's three parts with its weights 1, 0.25
    and 0.125, divided by their sum.

    As in GUI-G1, the hit alone would shrink boxes and the IoU alone would enlarge them (Zhou et al. 2025, section 4). Unlike
    there, sizes are compared with each other instead of the screen, for which all small boxes are similar; only overlapping boxes
    earn the size part; and the box must lie on the screen.

    Known exploits: a box over the whole screen, if its middle is on the element, earns 8 of 11 and little more.
    """
    boxes, why = _both(case)
    if boxes is None:
        return Score(0.0, detail=why)
    found, true = boxes
    right, overlap = float(geometry.inside(geometry.middle(found), true)), geometry.iou(found, true)
    alike = geometry.likeness(found, true) if overlap > 0 else 0.0
    value = (right + 0.25 * overlap + 0.125 * alike) / FULL
    parts = {"hit": right, "iou": overlap, "size": alike}
    return Score(min(1.0, value), parts=parts, detail=f"hit {right:g}, IoU {overlap:.3f}, size {alike:.3f}")


def _where(case: Case, first: bool = False) -> tuple[tuple[Any, Any] | None, str]:
    """((point, None) or (None, box) as written, ""), or (None, why there is neither)."""
    written = numbers_of(case).order
    completion = written.without_tokens(case.completion)
    after = completion.partition("</think>")[2] if first and completion.startswith("<think>") else ""
    text, why = reading.said(after or completion, _tags(case))
    if text is None:
        return None, why
    point, box = reading.place(text, written.y_first)
    listed = reading.json_said(text) if first else None
    if isinstance(listed, list) and listed:
        point, box = reading.place_in(listed[0], written.y_first)
    return ((point, box), "") if point or box else (None, "not one point or box")


def _both(case: Case) -> tuple[tuple[Box, Box] | None, str]:
    """(the box that is answered, the true one as it would be written), in pixels."""
    where, why = _where(case)
    if where is None or where[1] is None:
        return None, why or "a point, and not a box"
    numbers = numbers_of(case)
    found = numbers.pixels_of_box(where[1])
    true = numbers.pixels_of_box(numbers.written_box(_boxes(case.answer)[0]))
    if not geometry.is_box(found) or _leaves(found, true, numbers):
        return None, "no box on the screen"
    return (found, true), ""


def on_grid(grid: Sequence[float] | None) -> str:
    """Text for the detail of a miss: on a grid, no cell's middle may hit a small element."""
    return f", on a grid of {grid[0]} x {grid[1]}" if grid else ""


def _leaves(box: Box, true: Box, numbers: Numbers) -> bool:
    """Whether a box exceeds its picture by more than a pixel, and by more than the rounded true one."""
    if numbers.image is None:
        return False
    width, height = numbers.image
    low, right, bottom = min(-1.0, true[0], true[1]), max(width + 1.0, true[2]), max(height + 1.0, true[3])
    return min(box[0], box[1]) < low or box[2] > right or box[3] > bottom


def _boxes(answer: Any) -> list[Box]:
    """The true boxes of an answer."""
    if isinstance(answer, Mapping):
        answer = answer["box"] if "box" in answer else answer["bbox"]
    several = isinstance(answer[0], Sequence | Mapping)
    return [_box(one) for one in answer] if several else [_box(answer)]


def _box(value: Any) -> Box:
    x1, y1, x2, y2 = value["box"] if isinstance(value, Mapping) else value
    return x1, y1, x2, y2


# -- what to do ---------------------------------------------------------------------------------------------------------------


def action(case: Case, text: Literal["exact", "f1", "anls"] = "exact", graded: bool = False, either: bool = False) -> Score:
    """1 when the action is the true one, with its kind and arguments. The step success of AndroidControl (Li et al. 2024).

    Clicks, presses and the start of a drag must lie in the true box, or without one within 0.14 of the screen from the true
    point, as must a drag's end; a scroll must go the same way; texts, apps, keys and answers must be equal, except for case and
    blanks. A wait, and going back or home, have no arguments. Parts: `type`; `grounding` if the true action has a position,
    `text` if it has a text, `direction` of scrolls. Each is 0 if the kind is wrong.

    text: "f1" accepts typed texts and answers from an F1 of 0.5 between their words on, as in GUI-R1; "anls" texts of which one
    is in the other, or whose edit distance is at most half of the longer one, as in GUI-Odyssey. graded: half for the kind, half
    for the arguments. either: a click in the box or near the true point is right, as in GUI-Odyssey, whose boxes are a model's.

    Known exploits: with `graded`, guessing the commonest kind earns its share.
    """
    about = _about(case)
    true, numbers = of_data(about["action"]), numbers_of(case)
    try:
        found = _as_scroll(read(case.completion, numbers, tags=_tags(case), names=offered(case.meta)), true)
    except NoAction as why:
        return Score(0.0, parts=dict.fromkeys(_parts(true), 0.0), detail=str(why))
    same = found.kind == true.kind
    parts = {name: float(same) for name in _parts(true)}
    if same and "grounding" in parts:
        parts["grounding"] = float(_there(found, true, about.get("box"), numbers, either))
    if same and "text" in parts:
        parts["text"] = float(_same_text(found, true, text))
    if same and "direction" in parts:
        parts["direction"] = float(found.direction == true.direction)
    rest = [value for name, value in parts.items() if name != "type"]
    right = all(parts.values())
    value = float(right) if not graded else 0.5 * float(same) + 0.5 * (sum(rest) / len(rest) if rest else float(same))
    wrong = [name for name, value in parts.items() if not value]
    return Score(
        value,
        parts=parts,
        detail="right" if right else f"wrong: {', '.join(wrong)}; {found.kind}, not {true.kind}{on_grid(case.meta.get('grid'))}",
    )


def action_type(case: Case) -> Score:
    """1 when the kind of the action is the true one, whatever its arguments are.

    Known exploits: the commonest kind is often right.
    """
    try:
        found = read(case.completion, numbers_of(case), tags=_tags(case), names=offered(case.meta))
    except NoAction as why:
        return Score(0.0, detail=str(why))
    true = of_data(_about(case)["action"])
    kind = _as_scroll(found, true).kind
    return Score(float(kind == true.kind), detail=f"{kind}, and {true.kind} is right")


def _about(case: Case) -> Mapping[str, Any]:
    """The true action and its box; tasks with answers in a published form have them in `meta["true"]`."""
    found: Mapping[str, Any] = case.meta.get("true", case.answer)
    return found


def _tags(case: Case) -> bool:
    return case.meta.get("style") == "tags"


def _parts(true: Action) -> list[str]:
    named = {
        "grounding": (true.at is not None or true.to is not None) and true.kind != "scroll",
        "text": bool(true.text),
        "direction": true.direction,
    }
    return ["type", *(name for name, there in named.items() if there)]


def _there(found: Action, true: Action, box: Sequence[float] | None, numbers: Numbers, either: bool = False) -> bool:
    """Whether the positions of an action are right; a drag without a start begins where the pointer is."""
    if found.at is None or true.at is None:
        return found.at is true.at and _near_end(found, true, numbers)
    screen = numbers.image or (1000, 1000)
    near = geometry.apart(found.at, true.at, screen) <= NEAR
    right = geometry.inside(found.at, box) or (either and near) if box else near
    if box and not right and numbers.is_coarse:  # what is written for the middle of the box is the closest possible
        cell = numbers.pixels(numbers.written(geometry.middle(box)))
        right = geometry.apart(found.at, cell, screen) < 1e-9
    return right and (true.to is None or _near_end(found, true, numbers))


def _near_end(found: Action, true: Action, numbers: Numbers) -> bool:
    assert true.to
    return found.to is not None and geometry.apart(found.to, true.to, numbers.image or (1000, 1000)) <= NEAR


def _as_scroll(found: Action, true: Action) -> Action:
    """A drag from one place to another where a scroll is right: on a phone both are a swipe, and the finger goes the other way.
    The longer of its two sides decides, as where GUI-Odyssey's swipes are read."""
    if true.kind != "scroll" or found.kind != "drag" or found.at is None or found.to is None:
        return found
    dx, dy = found.to[0] - found.at[0], found.to[1] - found.at[1]
    finger = ("right" if dx > 0 else "left") if abs(dx) > abs(dy) else ("down" if dy > 0 else "up")
    return Action(kind="scroll", at=found.at, direction=OPPOSITE[finger])  # type: ignore[arg-type]  # one of DIRECTIONS


def _same_text(found: Action, true: Action, how: str) -> bool:
    a, b = (folded(status(one.text) if one.kind == "answer" else one.text) for one in (found, true))
    if how == "anls" and found.kind != "answer":
        return _alike(found.text.strip(), true.text.strip())
    return a == b or (how == "f1" and found.kind in ("type", "answer") and f1(a, b) >= ENOUGH)


def _alike(a: str, b: str) -> bool:
    """Whether one text is in the other, or the edit distance is at most half of the longer one: GUI-Odyssey's text_matching."""
    if a in b or b in a:
        return True
    a, b = sorted((a, b), key=len)
    if 2 * (len(b) - len(a)) > len(b):
        return False  # the distance is at least the difference
    row = list(range(len(a) + 1))
    for n, sign in enumerate(b, 1):
        before, row[0] = row[0], n
        for m, other in enumerate(a, 1):
            before, row[m] = row[m], min(before + (sign != other), row[m] + 1, row[m - 1] + 1)
    return 1 - row[-1] / len(b) >= ENOUGH


def folded(text: str) -> str:
    """The form in which texts are compared: without case and blanks."""
    return " ".join(text.casefold().split())


def f1(found: str, true: str) -> float:
    """The harmonic mean of precision and recall of words, each counted once."""
    a, b = set(found.split()), set(true.split())
    return 2 * len(a & b) / (len(a) + len(b)) if a and b else float(a == b)


# -- the form -----------------------------------------------------------------------------------------------------------------


def form(case: Case) -> Score:
    """1 when the completion has the requested form: `meta["style"]` is short, json, brief, tags or ui-tars, `meta["asks"]` is
    point, box or action.

    short: numbers alone. brief: one line. json: JSON and nothing else. tags: one thought and one answer, neither empty, each in
    its tag, and nothing else; the answer is JSON. ui-tars: a thought after `Thought:`, not empty, and a call after `Action:`.

    Known exploits: the answer is not compared with the truth; combine it with a reward that does.
    """
    style, asks = case.meta.get("style", "json"), case.meta.get("asks", "action")
    text, why = reading.said(numbers_of(case).order.without_tokens(case.completion), style == "tags")
    if text is None:
        return Score(0.0, detail=why)
    if style == "tags" and not thinks_and_answers_once(case.completion):
        return Score(0.0, detail="not one thought, one answer and nothing else")
    if style == "ui-tars" and not _THOUGHT.match(case.completion.strip()):
        return Score(0.0, detail="no thought and, on a line of its own, an action")
    plain = text.strip()
    if style in ("short", "brief") and ("\n" in plain or _is_call(plain)):
        return Score(0.0, detail="more or other than was asked for")
    begins_as_json = plain[:1] in ("[", "{", "`")
    if begins_as_json != (style in ("json", "tags")) or (begins_as_json and not _whole_json(plain)):
        return Score(0.0, detail="more or other than was asked for")
    return Score(float(_holds(plain, asks, case)), detail=f"asked for: {asks}")


_THOUGHT = re.compile(r"Thought:\s*\S(?:(?!\nAction:).)*\nAction: *[a-z_]+\(", re.DOTALL)


def _is_call(plain: str) -> bool:
    """Whether a text is a call with arguments, as in the style ui-tars or in pyautogui's code."""
    try:
        call = call_of(last_action(plain))
    except NoAction:
        return True
    return bool(call and call[1])


def _holds(text: str, asks: str, case: Case) -> bool:
    if asks == "action":
        try:
            read(text, numbers_of(case), names=offered(case.meta))
        except NoAction:
            return False
        return True
    point, box = reading.place(text)
    return box is not None if asks == "box" else point is not None


def _whole_json(plain: str) -> bool:
    """Whether a text, without its ``` fence, begins and ends as JSON does."""
    if plain.startswith("```"):
        if not plain.endswith("```") or plain.count("```") != 2:
            return False
        plain = next(fenced_blocks(plain), "").strip()
    return (plain[:1], plain[-1:]) in (("[", "]"), ("{", "}"))


# -- episodes -----------------------------------------------------------------------------------------------------------------


def success(case: Case) -> Score:
    """1 when the episode succeeded; 0 also without an outcome."""
    value = float(case.outcome.get("success", 0.0))
    return Score(value, detail="" if value else on_grid(case.meta.get("grid")).removeprefix(", "))


def raw_reward(case: Case) -> float:
    """The page's reward of the whole episode without its time factor, -1 to 1. MiniWoB++ gives -1 for failing and for running out
    of time; so does this if the episode ended before the page gave a reward."""
    return _within(case.outcome.get("raw_reward", -1.0))


def decayed_reward(case: Case) -> float:
    """The same with the page's time factor, which decreases with time."""
    return _within(case.outcome.get("reward", -1.0))


def _within(value: float) -> float:
    return max(-1.0, min(1.0, float(value)))

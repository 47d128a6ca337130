"""Our verifiers: short answers to questions about a map, and plans with partial credit.

Completions may be hostile: everything here is linear in their length, and the length of an answer is checked before parsing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from mmrl import Case, Score
from mmrl.api.verifiers.parse import only_answer, parse_number, without_thinking
from mmrl_transit.network import Lines, Ride, best_route, cost, fold

MAX_ANSWER = 2_000
"""Characters of an answer; a longer one is no answer."""
SURPLUS = 2
"""Maximum of rides of a plan beyond those of the best one."""
_ARROW = re.compile("->|[>\u2192]")


def answer(case: Case) -> Score:
    """1 when the one `<answer>` holds the answer: yes or no, a count, a letter, the name of a line. With `meta["style"]` plain
    the whole completion is the answer.

    Without regard to case, blanks, one full stop at the end and brackets around: `(b).` is `B`. A count is compared as a
    number: `3.0` is 3; `two` and `2 lines` are wrong, unlike in `vqa/number`, because the prompt requests the number alone. Known
    exploits: guessing is right for half of the yes/no questions and a quarter of the letters; text around the tag is not read.
    """
    text, why = given(case)
    if text is None:
        return Score(0.0, detail=why)
    return Score(float(same(text, wanted(case))), detail=f"answered {text.strip()[:40]!r}")


def route(case: Case) -> Score:
    """The share of a plan that is right: 1 for a best route, 0.8 to 1 for one that arrives with more transfers or stops.

    The plan is `Red: Oak > Elm; Blue: Elm > Bay` in the one `<answer>`. A ride is valid when its line exists and has both
    stations. 0.15 each for: the first ride is valid and leaves the start; the last one is valid and reaches the end; the
    share of valid rides; the share of right transfers (both rides valid, other line, same station). Shares are of the rides of
    the plan, or of the best route if that has more. A plan that is right in all this, and visits no station twice, gets 0.2 more,
    up to 0.1 for few transfers and up to 0.1 for few stops. Known exploits: one valid ride from the start earns 0.15 to 0.3 in
    any direction. Invalid and repeated rides earn nothing, nor do plans of more than `SURPLUS` rides above the best.
    """
    text, why = given(case)
    if text is None:
        return Score(0.0, detail=why)
    trip = Trip.of(case.meta)
    plan = rides(text, trip.lines)
    if plan is None:
        return Score(0.0, detail="no plan such as Red: Oak > Elm; Blue: Elm > Bay")
    best = trip.best()
    if best is None:
        raise ValueError(f"no route leads from {trip.start!r} to {trip.end!r}: the network is broken")
    if len(plan) > best[0] + 1 + SURPLUS:
        return Score(0.0, detail=f"{len(plan)} rides, where {best[0] + 1} will do")
    return trip.judge(plan, best)


def arrives(case: Case) -> Score:
    """1 when the plan in the one `<answer>` leads from the start to the end with the fewest transfers, on any route.

    Known exploits: none; it reads the plan as `transit/route` does.
    """
    found = route(case)
    return Score(float(found.parts.get("fewest", 0.0)), detail=found.detail)


def score(case: Case) -> Score:
    """`transit/route` for plans (`meta["type"]` is planning), `transit/answer` for questions.

    Known exploits: those of the two.
    """
    return route(case) if "planning" in str(case.meta.get("type", "")) else answer(case)


def form(case: Case) -> float:
    """1 when the completion is one `<answer>` that is not empty, after one `<think>...</think>` or none, and blanks at most.
    With `meta["style"]` plain: when it is one line without tags.

    Known exploits: the text in the tags is not read; combine it with a reward for the answer.
    """
    text = case.completion.strip()
    if case.meta.get("style") == "plain":
        text = without_thinking(text)
        return float(0 < len(text) <= MAX_ANSWER and not any(c in text for c in "<\n\0"))
    inside, _ = only_answer(text)
    if inside is None or not inside.strip() or "<" in inside or not text.endswith("</answer>"):
        return 0.0
    before = text[: text.rindex("<answer>")].strip()
    thought = before.removeprefix("<think>").removesuffix("</think>")
    whole = before == f"<think>{thought}</think>" and "think>" not in thought and bool(thought.strip())
    return float(not before or whole)


# -- the answer and the truth -----------------------------------------------------------------------------------------------


def given(case: Case) -> tuple[str | None, str]:
    """(the answer's text, ""), or (None, why there is none)."""
    text, why = (without_thinking(case.completion), "") if case.meta.get("style") == "plain" else only_answer(case.completion)
    if text is not None and len(text) > MAX_ANSWER:
        return None, f"the answer is longer than {MAX_ANSWER:,} characters"
    return text, why


def told(meta: Mapping[str, Any], *keys: str) -> list[Any]:
    """The values of keys in meta. Raises ValueError for missing keys."""
    if missing := [key for key in keys if key not in meta]:
        raise ValueError(f"meta has no {', '.join(missing)}: a plan is judged by {', '.join(keys)}")
    return [meta[key] for key in keys]


def wanted(case: Case) -> str:
    """The answer in words: rows of ReasonMap have whole numbers for yes, no and letters."""
    kind, truth = str(case.meta.get("type", "")), case.answer
    if isinstance(truth, int) and "TorF" in kind:
        return "yes" if truth else "no"
    if isinstance(truth, int) and kind == "Counting1":
        return "abcdefghijklmnopqrstuvwxyz"[truth]
    return "" if truth is None else str(truth)


def same(text: str, truth: str) -> bool:
    """Both are the same short answer. An empty one is never right."""
    text, truth = (fold(t).removesuffix(".").strip("()[]* ") for t in (text, truth))
    if not truth or not text:
        return False
    count = parse_number(truth)
    return text == truth if count is None else parse_number(text) == count and "%" not in text


def rides(text: str, lines: Lines) -> list[Ride] | None:
    """The rides of a plan, with known names replaced by the network's; None if it is not a plan."""
    lookup = {fold(line): line for line in lines}
    names = {fold(stop): stop for stops in lines.values() for stop in stops}
    found = []
    for part in text.replace("\n", ";").split(";"):
        if not part.strip():
            continue
        head, *ends = _ARROW.split(part)
        line, colon, start = head.rpartition(":")
        if not colon or len(ends) != 1:
            return None
        line, start, end = fold(line), fold(start), fold(ends[0]).removesuffix(".")
        found.append(Ride(lookup.get(line, line), names.get(start, start), names.get(end, end)))
    return found or None


class Trip(NamedTuple):
    """A planning question, by which plans are judged."""

    lines: Lines
    start: str
    end: str
    known: Sequence[int] = ()
    """(transfers, stops) of the best route, if meta has them."""

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Trip:
        lines, start, end = told(meta, "metro_data", "station1", "station2")
        return cls(lines, start, end, meta.get("best", ()))

    def best(self) -> tuple[int, int] | None:
        if self.known:
            return self.known[0], self.known[1]
        found = best_route(self.lines, self.start, self.end)
        return cost(self.lines, found) if found else None

    def judge(self, plan: Sequence[Ride], best: tuple[int, int]) -> Score:
        """The score of a plan; see `route`."""
        valid = [r.start != r.end and {r.start, r.end} <= set(self.lines.get(r.line, ())) for r in plan]
        right = len({r for r, ok in zip(plan, valid, strict=True) if ok})
        joints = sum(
            valid[i] and valid[i + 1] and here.end == there.start and here.line != there.line
            for i, (here, there) in enumerate(pairwise(plan))
        )
        needed, changes = max(len(plan), best[0] + 1), max(len(plan) - 1, best[0])
        parts = {
            "start": float(valid[0] and plan[0].start == self.start),
            "end": float(valid[-1] and plan[-1].end == self.end),
            "rides": right / needed,
            "transfers": joints / changes if changes else float(right == needed),
        }
        value = 0.15 * sum(parts.values())
        stations = [self.start, *(r.end for r in plan)]
        if min(parts.values()) < 1 or len(set(stations)) < len(stations):
            return Score(value, parts, f"{right} of {len(plan)} rides are valid, {joints} of {changes} transfers right")
        transfers, stops = cost(self.lines, plan)
        fast = (best[0] + 1) / (transfers + 1), min(1.0, best[1] / stops)
        parts["fewest"] = float(transfers == best[0])
        why = f"it arrives with {transfers} transfers and {stops} stops, the best has {best[0]} and {best[1]}"
        return Score(min(1.0, value + 0.2 + 0.1 * fast[0] + 0.1 * fast[1]), parts, why)

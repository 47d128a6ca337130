"""The reward of RewardMap as published, faults included (github.com/fscdc/RewardMap, commit 15428ac).

Feng et al., "RewardMap: Tackling Sparse Rewards in Fine-grained Visual Reasoning via Multi-Stage Reinforcement Learning".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from mmrl import Case

LOWEST = -500.0
"""Lower bound of the reward: each surplus section costs up to 5, and 2,048 tokens have room for about a hundred."""
FLAGS = ("the final answer is", "the answer is", "the correct answer is", "the answer should be")
CITIES = {"easy": 1.0, "middle": 1.2, "hard": 1.5}
# replacements in a short answer, in this order; some twice, as published
LATEX = (
    *(
        (" ", ""),
        ("\\,", ""),
        ("∞", "\\infty"),
        ("+\\infty", "\\infty"),
        ("\\\\", "\\"),
        ("\n", ""),
        ("\\text", ""),
        ("\\mbox", ""),
    ),
    *(("\\left", ""), ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("{m}^3", ""), ("m^3", ""), ("{units}", "")),
    *(("units", ""), ("{km}", ""), ("km", "")),
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("\\left", ""), ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", "")),
    *(("\\$", ""), ("$", ""), ("\\%", ""), ("{.", "{0.")),
)
NAMES = (
    *(("Metro", ""), ("metro", ""), (",", ""), ("*", ""), ("\n", ""), ("'", ""), ("Univ.", "University"), ("Univ", "University")),
    *(("Tech.", "Technology"), ("Tech", "Technology"), ("road", "lu"), ("Road", "lu"), ("Station", ""), ("station", "")),
    ("Asian Games Village", "yayuncun"),
)
BRANCHES = (("八通", "Line 1"), ("大兴", "Line 4"))
"""Part of a route name -> the line of Beijing that it continues."""
_CLOSING = re.compile("[)）]")
_OPENING = re.compile("[(（]")


def score(case: Case) -> float:
    """RewardMap's reward: (10 x right + 0.5 x detail) x W, from `LOWEST` to 30.

    W is 1, 1.2 or 1.5 for `meta["difficulty_city"]` easy, middle or hard, and 0.5 more for plans with a transfer. Questions
    (`TorF`, `Counting` in `meta["type"]`) are judged by the last \\boxed{} or "the answer is"; their answer is a whole
    number: 1 or 0 for yes or no, 0 to 3 for the letters of `Counting1`, else the count. Plans (`planning`) are sections between
    `--` with `Route Name:`, `Departure Stop:` and `Arrival Stop:`; only they have a detail, at most 10.

    As published: the detail takes 5 from each section after the first `question_transfer_count`, so the last section of
    a right plan always costs 5: a right direct one is worth 10.5 in an easy city, one with a transfer 18.0. A plan may stay in
    place or make any detours, and "the answer is" is read up to ". " or the end of its line. Known exploits: if many transfers
    are needed, a plan of wrong sections with the right ends earns up to 10 in detail.
    """
    kind = str(case.meta["type"])
    if "TorF" in kind or "Counting" in kind:
        return 10.0 * answers(kind, short_answer(case.completion), case.answer) * _weight(kind, case.meta)
    if "planning" not in kind:
        raise ValueError(f"the type {kind!r} is unknown: use TorF, Counting or planning")
    plan = Plan(case.meta)
    detail = plan.detail(case.completion) if kind == "planning" else 0.0
    return max(LOWEST, (10.0 * plan.right(case.completion) + 0.5 * detail) * _weight(kind, case.meta))


def _weight(kind: str, meta: Mapping[str, Any]) -> float:
    city, transfers = meta["difficulty_city"], meta["question_transfer_count"]
    if city not in CITIES:
        raise ValueError(f"the city's difficulty {city!r} is unknown: use one of {', '.join(CITIES)}")
    if "TorF" in kind or "Counting" in kind:
        return CITIES[city]
    if not transfers >= 0:
        raise ValueError(f"{transfers!r} is not a number of transfers")
    return CITIES[city] + 0.5 * (transfers > 0)


# -- questions --------------------------------------------------------------------------------------------------------------


def short_answer(text: str) -> str:
    """A completion's answer to a question, in lower case, without LaTeX."""
    if "oxed{" not in text:
        for flag in (spelt for f in FLAGS for spelt in (f, f.replace("the", "The"))):
            before, text = text, text.split(flag)[-1].strip()
            if flag in before:
                text = text.split("\n")[0].split(". ")[0]
    elif text.count("oxed{") > 1:
        text = "\\boxed{" + text.split("oxed{")[-1]
    return _plain(text.lower().replace("{}", "")).rstrip(".").lstrip(":").strip()


def _plain(text: str) -> str:
    """The published `find_math_answer`, without fractions and roots, which are never an answer here."""
    start = text.find("oxed{") + len("oxed{")
    end = text.rfind("}")
    if start >= len("oxed{") and end >= start:  # the pattern `oxed{(.*)}` is greedy
        text = text[start:end]
    if text.find("}") != -1 and (text.find("{") == -1 or text.find("}") < text.find("{")):
        text = text.split("}")[0]
    text = text.split("=")[-1].split("\\approx")[-1]
    for old, new in LATEX:
        text = text.replace(old, new)
    text = "0" + text if text.startswith(".") else text
    parts = text.split("\\approx")
    return parts[-1] if len(parts) == 2 else text


def answers(kind: str, given: str, truth: Any) -> bool:
    """Whether a short answer is right for a type of question."""
    if "TorF" in kind:
        return given == ("yes" if truth == 1 else "no")
    if kind == "Counting1":
        return len(given) == 1 and given in "abcd" and "abcd".index(given) == truth
    if kind not in ("Counting2", "Counting3"):
        raise ValueError(f"the type {kind!r} is unknown: use Counting1, Counting2 or Counting3")
    try:
        return bool(int(given) == truth)
    except ValueError:
        return False


# -- plans ------------------------------------------------------------------------------------------------------------------


def clean(name: str) -> str:
    """A station's name in the form for comparisons. Not idempotent, so applied as often as published: `me-tro`, `metro`, ``."""
    for old, new in NAMES:
        name = name.replace(old, new)
    name = _without_brackets(name.removesuffix("站"))
    return re.sub(r"[\s\-]+", "", name).lower()


def _without_brackets(text: str) -> str:
    """Without `[(（][^)）]*[)）]`, in linear time."""
    kept, at = [], 0
    while (opening := _OPENING.search(text, at)) and (closing := _CLOSING.search(text, opening.end())):
        kept.append(text[at : opening.start()])
        at = closing.end()
    return "".join(kept) + text[at:]


def _field(section: str, name: str) -> str | None:
    """What `name: (.*?)\\n` finds; None without it."""
    start = section.find(f"{name}: ")
    end = section.find("\n", start + len(name) + 2) if start >= 0 else -1
    return section[start + len(name) + 2 : end] if end >= 0 else None


def sections(text: str, any_case: bool) -> list[tuple[str, str, str]]:
    """(line, from, to) of each section. Stops are cleaned twice, as published: on reading, and for comparison."""
    found = []
    for section in text.split("--"):
        known = section.lower() if any_case else section
        fields = ("Route Name:", "Departure Stop:", "Arrival Stop:")
        if not all((field.lower() if any_case else field) in known for field in fields):
            continue
        name, start = _field(section, "Route Name"), _field(section, "Departure Stop")
        line = "Wrong" if name is None else name.strip()
        for part, whole in BRANCHES:
            line = whole if part in line else line
        departure = "Wrong" if start is None else clean(start)
        found.append((line, clean(departure), clean(clean(section.split("Arrival Stop:")[-1].strip()))))
    return found


class Plan:
    """A planning question, by which plans are judged."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        lines: Mapping[str, Sequence[str]] = meta["metro_data"]
        self.stops = {name: {clean(stop) for stop in stops} for name, stops in lines.items()}
        self.ends = (clean(meta["station1"]), clean(meta["station2"]))
        self.transfers = meta["question_transfer_count"]

    def right(self, text: str) -> bool:
        """Every line exists and has both stops, each section begins where the one before ended, and the ends are right."""
        plan = sections(text, any_case=False)
        return (
            bool(plan)
            and (plan[0][1], plan[-1][2]) == self.ends
            and all(name in self.stops and {start, end} <= self.stops[name] for name, start, end in plan)
            and all(here[2] == there[1] for here, there in pairwise(plan))
        )

    def detail(self, text: str) -> float:
        """The published partial credit, at most 10 and with no floor."""
        plan = sections(text, any_case=True)
        if not plan or (plan[0][1], plan[-1][2]) != self.ends:
            return 0.0
        total = 2.0
        for i, (name, start, end) in enumerate(plan):
            surplus = i + 1 > self.transfers
            total -= 5 * surplus
            if name not in self.stops:
                continue
            if self.transfers:
                total += 3
            elif set(self.ends) <= self.stops[name]:
                total += 4
            if {start, end} <= self.stops[name] and i + 1 < len(plan) and end == plan[i + 1][1] and not surplus:
                total += 1
        return min(total, 10.0)

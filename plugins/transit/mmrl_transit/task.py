"""Transit maps as tasks: questions about a map, and plans of a trip. Maps are drawn by code, so all answers are known."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from mmrl import Prompt, Task, UserError, user_message
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl_transit import draw
from mmrl_transit.network import Lines, Ride, best_route, cost
from mmrl_transit.questions import KINDS, Question, ask, trips

LEVELS = {"easy": (2, 4, (0, 1)), "middle": (3, 5, (1,)), "hard": (5, 6, (1, 2))}
"""Level -> lines, stations on each, transfers that plans need."""
STYLES = ("short", "tags", "plain", "rewardmap")
PLAN = "Line: from > to; Line: from > to"
THINK = "Think in <think> </think> tags, then answer"
MAPS = 100
"""Maximum of maps that are drawn to find one with the required answer."""
ITEMS = {"warm": 200, "train": 2000, "test": 200}


class Map(NamedTuple):
    """A drawn map."""

    lines: Lines
    picture: Any
    points: Mapping[str, tuple[int, int]]
    level: str


@dataclass(kw_only=True, eq=False)
class Drawn(Task):
    """Base class of the tasks on drawn maps."""

    level: str = "mixed"
    """Size of the maps: easy (2 lines of 4 stations), middle (3 of 5), hard (5 of 6), or mixed, which alternates."""
    lines: int | None = None
    """Number of lines, 2 to 8, instead of the level's."""
    stations: int | None = None
    """Stations on every line, 3 to 8, instead of the level's."""
    size: int = 336
    """Side of the map in pixels, 200 to 2048."""
    style: str = "short"
    """The requested form of the answer:

    - short: an answer tag alone
    - tags: a thought, then the answer tag
    - plain: the answer and nothing else
    - rewardmap: the form that RewardMap's reward reads, `transit/score@rewardmap`
    """
    seed: int = 0
    """Seed of the maps. The run's seed doesn't change them, so that all runs are tested on the same maps."""
    items: Mapping[str, int] = field(default_factory=lambda: dict(ITEMS))
    """Split -> number of items."""

    splits: ClassVar[tuple[str, ...]] = ("warm", "train", "test")

    def __post_init__(self) -> None:
        check_choice("level", self.level, (*LEVELS, "mixed"))
        check_choice("style", self.style, STYLES)
        check_type("seed", self.seed, int)
        check_integer("size", self.size, 200, 2048)
        for option, least in (("lines", 2), ("stations", 3)):
            if getattr(self, option) is not None:
                check_integer(option, getattr(self, option), least, 8)
        if (
            not isinstance(self.items, Mapping)
            or not self.items
            or not all(isinstance(k, str) and k and type(n) is int and n > 0 for k, n in self.items.items())
        ):
            raise UserError(
                f"items = {self.items!r:.200} must be a table of splits and numbers of items: {{train = 2000, test = 200}}"
            )
        if (self.lines or 2) * (self.stations or 4) > len(draw.STATIONS):
            raise UserError(
                f"{self.lines} lines of {self.stations} stations need more names than are available: lower one of them"
            )
        self.splits = tuple(self.items)  # type: ignore[misc]  # the option names them

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        return LazyPrompts(
            range(self.items[split]), lambda number: self._prompt(split, number), lambda number: self._difficulty(split, number)
        )

    def gold(self, prompt: Prompt) -> str:
        answer = prompt.meta["solution"]
        if self.style == "rewardmap":
            return sections(answer) if prompt.meta["type"] == "planning" else f"\\boxed{{{answer}}}"
        text = answer if self.style == "plain" else f"<answer>{answer}</answer>"
        return f"<think>{prompt.meta['thought']}</think>\n{text}" if self.style == "tags" else text

    def _prompt(self, split: str, number: int) -> Prompt:
        raise NotImplementedError(f"{type(self).__name__} must define _prompt(split, number)")

    def _difficulty(self, split: str, number: int) -> float:
        raise NotImplementedError(f"{type(self).__name__} must define _difficulty(split, number)")

    def _lines(self, number: int) -> int:
        return self.lines or LEVELS[self._level(number)][0]

    def _level(self, number: int) -> str:
        return list(LEVELS)[number % len(LEVELS)] if self.level == "mixed" else self.level

    def _layout(self, split: str, number: int, attempt: int = 0) -> draw.Layout:
        stations = self.stations or LEVELS[self._level(number)][1]
        return draw.layout(self._chance(split, number, f"map {attempt}"), self._lines(number), stations)

    def _map(self, number: int, plan: draw.Layout) -> Map:
        picture, points = draw.picture(plan, self.size)
        return Map(plan.lines, picture, points, self._level(number))

    def _chance(self, split: str, number: int, what: str) -> random.Random:
        return chance(self.seed, split, str(number), what)

    def _meta(self, drawn: Map, ends: Sequence[str], **more: Any) -> dict[str, Any]:
        """The meta data for both verifiers, ours and RewardMap's."""
        return {
            "metro_data": {line: list(stops) for line, stops in drawn.lines.items()},
            "difficulty_city": drawn.level,
            "points": [drawn.points[s] for s in ends],
            "station1": ends[0] if ends else "",
            "station2": ends[-1] if ends else "",
            "style": self.style,
            **more,
        }


@dataclass(kw_only=True, eq=False)
class Questions(Drawn):
    """Short questions about a map: yes or no, counts, a line's name, a letter."""

    kinds: Sequence[str] | None = None
    """Kinds of questions, in turn, from easy to hard: on, direct, lines, line, stops, transfers, choice. By default all; the
    style rewardmap has no `line`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = tuple(k for k in KINDS if k != "line") if self.style == "rewardmap" else KINDS
        if self.kinds is not None and (not isinstance(self.kinds, list | tuple) or not self.kinds):
            raise UserError(f"kinds = {self.kinds!r:.200} must be a list such as ['on', 'stops']: leave it out for all")
        for kind in self.kinds or ():
            check_choice("kinds", kind, known)
        self._kinds = tuple(self.kinds or known)

    def _difficulty(self, split: str, number: int) -> float:
        return KINDS.index(self._kind(number)) + self._lines(number) / 10

    def _kind(self, number: int) -> str:
        return self._kinds[number // len(LEVELS) % len(self._kinds)]  # the levels change faster, so that each has every kind

    def _prompt(self, split: str, number: int) -> Prompt:
        kind = self._kind(number)
        wanted = self._chance(split, number, "answer").randint(1, min(3, self._lines(number)))
        for attempt in range(MAPS):
            plan = self._layout(split, number, attempt)
            question = ask(kind, plan.lines, self._chance(split, number, "question"), wanted)
            if question is not None:
                break
        else:  # on maps of few stations no line may have the required number of transfers
            question = ask(kind, plan.lines, self._chance(split, number, "question"))
        assert question is not None
        drawn = self._map(number, plan)
        meta = self._meta(
            drawn,
            question.stations,
            type=question.type,
            question_transfer_count=0,
            difficulty=self._difficulty(split, number),
            kind=kind,
            choices=question.choices,
            solution=question.answer,
            thought=f"I look at {' and '.join(question.stations) or 'the stations of the line'}.",
        )
        text = f"{question.text}\n{asked(question.choices, self.style)}"
        answer = as_number(question) if self.style == "rewardmap" else question.answer
        return Prompt(id=f"{split}-{number}", messages=[user_message(text, drawn.picture)], answer=answer, meta=meta)


@dataclass(kw_only=True, eq=False)
class Plans(Drawn):
    """A trip from one station to another, with the fewest transfers and then the fewest stops."""

    transfers: Sequence[int] | None = None
    """Numbers of transfers of the best route, 0 to 4, one of which is drawn; by default 0 or 1 on easy maps, 1 on middle ones,
    1 or 2 on hard ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transfers is not None:
            if not isinstance(self.transfers, list | tuple) or not self.transfers:
                raise UserError(
                    f"transfers = {self.transfers!r:.200} must be a list such as [1, 2]: leave it out for the level's"
                )
            for number in self.transfers:
                check_integer("transfers", number, 0, 4)
        for number in range(len(LEVELS)):
            lines = self._lines(number)
            if max(self._transfers(number)) >= lines:
                raise UserError(
                    f"{max(self._transfers(number))} transfers need more than the {lines} lines of level {self._level(number)}: "
                    "set lines, another level or fewer transfers"
                )

    def _transfers(self, number: int) -> Sequence[int]:
        return self.transfers or LEVELS[self._level(number)][2]

    def _difficulty(self, split: str, number: int) -> float:
        return len(KINDS) + self._drawn_transfers(split, number) + self._lines(number) / 10

    def _drawn_transfers(self, split: str, number: int) -> int:
        return self._chance(split, number, "transfers").choice(list(self._transfers(number)))

    def _prompt(self, split: str, number: int) -> Prompt:
        transfers = self._drawn_transfers(split, number)
        for attempt in range(1000):
            plan = self._layout(split, number, attempt)
            ends = trips(plan.lines, transfers)
            if ends:
                break
        else:
            raise UserError(f"no map of this size has a trip of {transfers} transfers: set fewer transfers or more lines")
        drawn = self._map(number, plan)
        start, end = self._chance(split, number, "trip").choice(ends)
        route = best_route(drawn.lines, start, end) or []
        meta = self._meta(
            drawn,
            (start, end),
            type="planning",
            question_transfer_count=transfers,
            difficulty=self._difficulty(split, number),
            best=cost(drawn.lines, route),
            solution="; ".join(map(str, route)),
            thought=thought(route),
        )
        return Prompt(
            id=f"{split}-{number}",
            messages=[user_message(trip(start, end, self.style), drawn.picture)],
            answer=None if self.style == "rewardmap" else meta["solution"],
            meta=meta,
        )


# -- words ------------------------------------------------------------------------------------------------------------------


def asked(choices: Sequence[str], style: str) -> str:
    """The instruction for a short answer."""
    kind = " or ".join(choices) if 1 < len(choices) <= 3 else f"one of {', '.join(choices)}" if choices else "a number"
    return {
        "short": f"Answer in <answer></answer>: {kind}.",
        "tags": f"{THINK} in <answer> </answer> tags: {kind}.",
        "plain": f"Answer with {kind} and nothing else.",
        "rewardmap": f"Put the final answer into \\boxed{{}}: {kind}.",
    }[style]


def trip(start: str, end: str, style: str) -> str:
    """The question of a plan."""
    if style == "rewardmap":
        return (
            f"Please give a route from {start} to {end}, with the fewest transfers. Write each section as\n"
            "Route Name: the line\nDeparture Stop: where you board\nArrival Stop: where you leave\nand -- between sections."
        )
    return (
        f"Travel from {start} to {end} with the fewest transfers, then the fewest stops.\n"
        + {
            "short": f"Answer as <answer>{PLAN}</answer>.",
            "tags": f"{THINK} as <answer>{PLAN}</answer>.",
            "plain": f"Answer as {PLAN} and nothing else.",
        }[style]
    )


def sections(plan: str) -> str:
    """A plan in RewardMap's format."""
    parts = []
    for ride in plan.split("; "):
        line, _, ends = ride.partition(": ")
        start, _, end = ends.partition(" > ")
        parts.append(f"Route Name: {line}\nDeparture Stop: {start}\nArrival Stop: {end}\n")
    return "--\n".join(parts)


def thought(route: Sequence[Ride]) -> str:
    return "I take " + ", then ".join(f"the {r.line} line to {r.end}" for r in route) + "."


def as_number(question: Question) -> int:
    """An answer as in RewardMap's data."""
    if question.type == "Counting1":
        return "ABCD".index(question.answer)
    return int(question.answer == "yes") if question.type.startswith("TorF") else int(question.answer)

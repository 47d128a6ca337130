"""Questions about a network, from easy to hard, similar to those of ReasonMap-Plus."""

from __future__ import annotations

import random
from typing import NamedTuple

from mmrl_transit.network import Lines, Ride, rides_from, transfer_stations


class Question(NamedTuple):
    """A question with its answer."""

    kind: str
    text: str
    answer: str
    type: str
    """RewardMap's type: TorF1, TorF2, Counting1, Counting2, Counting3; `Line` is not one of its types."""
    choices: tuple[str, ...]
    """The possible answers, if they are few."""
    stations: tuple[str, ...] = ()
    """The stations in the question, at most two."""


KINDS = ("on", "direct", "lines", "line", "stops", "transfers", "choice")
"""In order of difficulty."""


def ask(kind: str, lines: Lines, draw: random.Random, answer: int | None = None) -> Question | None:
    """A random question of a kind in `KINDS`. The answer is drawn before the question, so that no answer is the best guess.

    answer: for the kind `transfers`, the required count; returns None if no line of the network has it.
    """
    if kind == "transfers":
        return _transfers(lines, draw, answer)
    return {"on": _on, "direct": _direct, "lines": _lines, "line": _line, "stops": _stops, "choice": _choice}[kind](lines, draw)


def _on(lines: Lines, draw: random.Random) -> Question:
    line = draw.choice(sorted(lines))
    wanted = draw.random() < 0.5
    others = sorted({s for stops in lines.values() for s in stops} - set(lines[line]))
    station = draw.choice(list(lines[line]) if wanted or not others else others)
    truth = "yes" if station in lines[line] else "no"
    return Question("on", f"Is {station} on the {line} line?", truth, "TorF1", ("yes", "no"), (station,))


def _direct(lines: Lines, draw: random.Random) -> Question:
    stations = sorted({s for stops in lines.values() for s in stops})
    near = {s: {t for stops in lines.values() if s in stops for t in stops} for s in stations}
    wanted = draw.random() < 0.5
    pairs = {s: [t for t in stations if t != s and (t in near[s]) == wanted] for s in stations}
    start = draw.choice([s for s in stations if pairs[s]] or stations)
    end = draw.choice(pairs[start] or [t for t in stations if t != start])
    text = f"Does one line go from {start} to {end} without a transfer?"
    return Question("direct", text, "yes" if end in near[start] else "no", "TorF2", ("yes", "no"), (start, end))


def _lines(lines: Lines, draw: random.Random) -> Question:
    stations = sorted({s for stops in lines.values() for s in stops})
    wanted = draw.choice((1, 2))
    station = draw.choice([s for s in stations if sum(s in stops for stops in lines.values()) == wanted] or stations)
    count = sum(station in stops for stops in lines.values())
    return Question("lines", f"How many lines stop at {station}?", str(count), "Counting2", (), (station,))


def _line(lines: Lines, draw: random.Random) -> Question:
    """Two stations that only one line joins; lines share no track, so there are some on every line."""
    line = draw.choice(sorted(lines))
    start, end = draw.sample(list(lines[line]), 2)
    while sum({start, end} <= set(stops) for stops in lines.values()) > 1:
        start, end = draw.sample(list(lines[line]), 2)
    return Question("line", f"Which line goes from {start} to {end}?", line, "Line", tuple(sorted(lines)), (start, end))


def _ride(lines: Lines, draw: random.Random) -> tuple[Ride, int]:
    """A ride of two stops or more, and the number of stops between its ends: all numbers are equally likely."""
    line = draw.choice(sorted(lines))
    stops = lines[line]
    between = draw.randint(1, len(stops) - 2)
    start = draw.randrange(len(stops) - between - 1)
    return Ride(line, *draw.sample([stops[start], stops[start + between + 1]], 2)), between


def _stops(lines: Lines, draw: random.Random) -> Question:
    ride, between = _ride(lines, draw)
    text = f"How many stops lie between {ride.start} and {ride.end} on the {ride.line} line?"
    return Question("stops", text, str(between), "Counting3", (), (ride.start, ride.end))


def _transfers(lines: Lines, draw: random.Random, wanted: int | None) -> Question | None:
    met = set(transfer_stations(lines))
    counts = {line: len(met & set(stops)) for line, stops in sorted(lines.items())}
    able = [line for line, count in counts.items() if wanted in (None, count)]
    if not able:
        return None
    line = draw.choice(able)
    text = f"At how many stations of the {line} line can one change to another line?"
    return Question("transfers", text, str(counts[line]), "Counting3", ())


def _choice(lines: Lines, draw: random.Random) -> Question:
    """Four consecutive numbers in random order, so that all letters are equally likely."""
    ride, between = _ride(lines, draw)
    least = draw.randint(max(1, between - 3), max(1, min(between, len(lines[ride.line]) - 5)))
    options = draw.sample(range(least, least + 4), 4)
    offered = " ".join(f"{letter}) {n}" for letter, n in zip("ABCD", options, strict=True))
    text = f"How many stops lie between {ride.start} and {ride.end} on the {ride.line} line? {offered}"
    return Question("choice", text, "ABCD"[options.index(between)], "Counting1", tuple("ABCD"), (ride.start, ride.end))


def trips(lines: Lines, transfers: int) -> list[tuple[str, str]]:
    """The pairs of stations whose best route has this many transfers, by name."""
    stations = sorted({s for stops in lines.values() for s in stops})
    return [(a, b) for a in stations for b, rides in sorted(rides_from(lines, a).items()) if rides == transfers + 1]

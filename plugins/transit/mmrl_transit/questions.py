"""Questions about a network, from easy to hard, after those of ReasonMap-Plus."""

from __future__ import annotations

import random
from typing import NamedTuple

from mmrl_transit.network import Lines, Ride, rides_from, stops_between, transfer_stations


class Question(NamedTuple):
    """A question, and what it is about."""

    kind: str
    text: str
    answer: str
    type: str
    """What RewardMap calls it: TorF1, TorF2, Counting1, Counting2, Counting3; `Line` is none of its types."""
    choices: tuple[str, ...]
    """What may be answered, where that is a short list."""
    stations: tuple[str, ...] = ()
    """The stations in the question, at most two."""


KINDS = ("on", "direct", "lines", "line", "stops", "transfers", "choice")
"""In order of difficulty."""


def ask(kind: str, lines: Lines, draw: random.Random) -> Question:
    """A question of a kind in `KINDS`, drawn."""
    return {
        "on": _on,
        "direct": _direct,
        "lines": _lines,
        "line": _line,
        "stops": _stops,
        "transfers": _transfers,
        "choice": _choice,
    }[kind](lines, draw)


def _on(lines: Lines, draw: random.Random) -> Question:
    line = draw.choice(sorted(lines))
    wanted = draw.random() < 0.5
    others = sorted({s for stops in lines.values() for s in stops} - set(lines[line]))
    station = draw.choice(list(lines[line]) if wanted or not others else others)
    truth = "yes" if station in lines[line] else "no"
    return Question("on", f"Is {station} on the {line} line?", truth, "TorF1", ("yes", "no"), (station,))


def _direct(lines: Lines, draw: random.Random) -> Question:
    stations = sorted({s for stops in lines.values() for s in stops})
    wanted = draw.random() < 0.5
    start = draw.choice(stations)
    near = {s for stops in lines.values() if start in stops for s in stops}
    ends = [s for s in stations if s != start and (s in near) == wanted] or [s for s in stations if s != start]
    end = draw.choice(ends)
    text = f"Does one line go from {start} to {end} without a transfer?"
    return Question("direct", text, "yes" if end in near else "no", "TorF2", ("yes", "no"), (start, end))


def _lines(lines: Lines, draw: random.Random) -> Question:
    stations = sorted({s for stops in lines.values() for s in stops})
    many = [s for s in transfer_stations(lines)] if draw.random() < 0.5 else []
    station = draw.choice(many or stations)
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
    """A ride of two stops or more, and how many stops lie between its ends."""
    line = draw.choice(sorted(lines))
    i, j = sorted(draw.sample(range(len(lines[line])), 2))
    while j - i < 2:
        i, j = sorted(draw.sample(range(len(lines[line])), 2))
    ride = Ride(line, *draw.sample([lines[line][i], lines[line][j]], 2))
    return ride, stops_between(lines[line], ride.start, ride.end) - 1


def _stops(lines: Lines, draw: random.Random) -> Question:
    ride, between = _ride(lines, draw)
    text = f"How many stops lie between {ride.start} and {ride.end} on the {ride.line} line?"
    return Question("stops", text, str(between), "Counting3", (), (ride.start, ride.end))


def _transfers(lines: Lines, draw: random.Random) -> Question:
    line = draw.choice(sorted(lines))
    count = sum(s in lines[line] for s in transfer_stations(lines))
    text = f"At how many stations of the {line} line can one change to another line?"
    return Question("transfers", text, str(count), "Counting3", ())


def _choice(lines: Lines, draw: random.Random) -> Question:
    ride, between = _ride(lines, draw)
    least = max(0, between - draw.randrange(4))
    options = [least + i for i in range(4)]
    offered = " ".join(f"{letter}) {n}" for letter, n in zip("ABCD", options, strict=True))
    text = f"How many stops lie between {ride.start} and {ride.end} on the {ride.line} line? {offered}"
    return Question("choice", text, "ABCD"[options.index(between)], "Counting1", tuple("ABCD"), (ride.start, ride.end))


def trips(lines: Lines, transfers: int) -> list[tuple[str, str]]:
    """The pairs of stations whose best route has this many transfers, by name."""
    stations = sorted({s for stops in lines.values() for s in stops})
    return [(a, b) for a in stations for b, rides in sorted(rides_from(lines, a).items()) if rides == transfers + 1]

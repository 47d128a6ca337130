"""A transit network: lines and their stations in order, possible rides, and the best route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from mmrl.api.verifiers.parse import nfc

Lines = Mapping[str, Sequence[str]]
"""Line -> its stations, in order."""


class Ride(NamedTuple):
    """A ride along one line."""

    line: str
    start: str
    end: str

    def __str__(self) -> str:
        return f"{self.line}: {self.start} > {self.end}"


def fold(name: str) -> str:
    """A name in the form for comparisons: NFC, without case, outer blanks and runs of blanks."""
    return " ".join(nfc(name).casefold().split())


def stops_between(stations: Sequence[str], start: str, end: str) -> int:
    """Number of stops of a ride, its end included: 1 to the next station. On a ring that names a station twice, the shorter way.
    Raises ValueError if one of the two is not on the line."""
    places = [[i for i, s in enumerate(stations) if s == name] for name in (start, end)]
    if not all(places):
        raise ValueError(f"{start!r} and {end!r} are not both on the line")
    return min(abs(a - b) for a in places[0] for b in places[1])


def best_route(lines: Lines, start: str, end: str) -> list[Ride] | None:
    """The route with the fewest transfers and, among those, the fewest stops; of equals the first by name. None without one."""
    on: dict[str, list[str]] = {}
    for name in sorted(lines):
        for station in dict.fromkeys(lines[name]):
            on.setdefault(station, []).append(name)
    queue: list[tuple[int, int, tuple[Ride, ...], str]] = [(0, 0, (), start)]
    done: set[str] = set()
    while queue:
        rides, stops, route, here = heappop(queue)
        if here == end:
            return list(route)
        if here in done:
            continue
        done.add(here)
        for name in on.get(here, ()):
            for there in dict.fromkeys(lines[name]):
                if there not in done:
                    further = stops_between(lines[name], here, there)
                    heappush(queue, (rides + 1, stops + further, (*route, Ride(name, here, there)), there))
    return None


def rides_from(lines: Lines, start: str) -> dict[str, int]:
    """Station -> number of rides to it from `start`, for all that can be reached."""
    reached, edge = {start: 0}, [start]
    while edge:
        beyond = [there for here in edge for stops in lines.values() if here in stops for there in stops if there not in reached]
        reached |= {there: reached[edge[0]] + 1 for there in beyond}
        edge = list(dict.fromkeys(beyond))
    return reached


def cost(lines: Lines, route: Sequence[Ride]) -> tuple[int, int]:
    """(transfers, stops) of a route whose rides exist."""
    return len(route) - 1, sum(stops_between(lines[r.line], r.start, r.end) for r in route)


def transfer_stations(lines: Lines) -> list[str]:
    """The stations of two lines or more, by name."""
    seen: dict[str, int] = {}
    for stations in lines.values():
        for station in set(stations):
            seen[station] = seen.get(station, 0) + 1
    return sorted(s for s, n in seen.items() if n > 1)

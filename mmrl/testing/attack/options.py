"""Options of the wrong type, size or sign."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from mmrl.testing.attack.campaign import Attempt, attempt

ODD: Mapping[str, Any] = {
    "no text": "",
    "a text": "x",
    "a long text": "x" * 100_000,
    "half a character": "\ud800",
    "a null byte": "a\0b",
    "a path upwards": "../../../../nowhere",
    "a device": "/dev/null",
    "true": True,
    "zero": 0,
    "minus one": -1,
    "a fraction": 0.5,
    "enormous": 10**30,
    "NaN": math.nan,
    "infinite": math.inf,
    "an empty list": [],
    "a mixed list": [1, "a", None],
    "an empty table": {},
    "a table": {"a": {"b": 1}},
    "a date": __import__("datetime").date(2026, 1, 1),
}
MOST_S = 20.0
"""Seconds that refusing an option, or making something with it, may take."""


def attack_options(
    what: str, target: Callable[..., Any], make: Callable[[Mapping[str, Any]], Any], filled: Collection[str] = ()
) -> Iterator[Attempt]:
    """Make something with each option in turn odd. It held if that works, or is refused by a UserError of one line.

    what: for the names. target: has the options as parameters. make: options -> what is made and thrown away. filled: names of
    parameters that are no options."""
    for option in _options(target, filled):
        for how, value in ODD.items():
            yield attempt(f"{what}: {option} is {how}", MOST_S, _make, make, {option: value})
    yield attempt(f"{what}: an option that it doesn't have", MOST_S, _make, make, {"no_such_option": 1})


def _options(target: Callable[..., Any], filled: Collection[str]) -> list[str]:
    parameters = inspect.signature(target).parameters.values()
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in filled]


def _make(make: Callable[[Mapping[str, Any]], Any], options: Mapping[str, Any]) -> None:
    made = make(options)
    if callable(close := getattr(made, "close", None)):
        close()

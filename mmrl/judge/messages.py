"""Messages between the judge and its worker processes. Nothing that a worker writes is believed before it is checked here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from mmrl.api import errors
from mmrl.api.errors import UserError
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Case, Score
from mmrl.compute.crossing import Fault

SLACK = 1e-6
"""A value may be outside its range by this much, for rounding."""
MAX_PARTS = 256
"""Largest number of a score's parts."""
LONGEST_NAME = 200
"""Largest number of characters of a part's name."""
LONGEST_REPLY = 2**25
"""Bytes of a reply; a worker that writes more without an end of line is broken."""

Row = tuple[float | None, dict[str, float], str, list[float]]
"""The fields of a Score in a reply."""


@dataclass(eq=False, slots=True)
class Request:
    """Cases to run through verifiers."""

    cases: Sequence[Case | bytes]
    """Cases, or cases pickled by `payload`."""
    wanted: Mapping[str, Sequence[int]]
    """Verifier id -> the indices of the cases that it scores."""
    finish: Callable[[Mapping[str, Mapping[int, Score]]], Any]
    """Makes the future's result of verifier id -> case index -> score."""
    future: Future[Any] = field(default_factory=Future)
    scores: dict[str, dict[int, Score]] = field(default_factory=dict)
    missing: int = 0

    def put(self, verifier: str, index: int, score: Score) -> None:
        self.scores[verifier][index] = score
        self.missing -= 1


@dataclass(eq=False, slots=True)
class Chunk:
    """Cases of one request for one verifier, which one worker gets in one message."""

    request: Request
    verifier: str
    indices: list[int]
    """Cases without a score, in the order in which they are scored."""
    careful: bool = False
    """Send each result at once, because a worker died on an unknown case."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has loaded its verifiers."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Results of a chunk's next cases."""

    rows: Sequence[Row]
    healthy: bool | None = None
    """None if more are to come; otherwise whether the worker can go on."""


class BadReply(Exception):
    """A line from a worker that isn't the reply that it owes."""


def parse(line: bytes | bytearray, loading: bool, serial: int, missing: int) -> Ready | Fault | Scores:
    """A line of a worker.

    loading: it owes the news that it has loaded. serial, missing: of the message that it works on, and its cases without a score;
    -1 and 0 if it owes nothing. Raises BadReply for anything but what it owes."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadReply from error
    if not isinstance(message, list) or not message:
        raise BadReply
    match message:
        case ["ready"] if loading:
            return Ready()
        case ["fault", [kind, text, trace, fields]] if loading:
            return _fault(kind, text, trace, fields)
        case ["scores", int(number), list(rows)] if number == serial and len(rows) < missing:
            return Scores([_row(row) for row in rows])
        case ["done", int(number), list(rows), bool(healthy)] if number == serial and len(rows) == missing:
            return Scores([_row(row) for row in rows], healthy)
    raise BadReply


def _row(row: Any) -> Row:
    if type(row) is not list or len(row) != 4:
        raise BadReply
    value, parts, detail, steps = row
    if not (value is None or type(value) is float or type(value) is int) or type(detail) is not str or type(steps) is not list:
        raise BadReply
    if type(parts) is not dict or (steps and not all(map(_finite, steps))) or (parts and not _right_parts(parts)):
        raise BadReply
    return value, parts, clean(detail) if detail else "", steps


def _right_parts(parts: dict[str, Any]) -> bool:
    return len(parts) <= MAX_PARTS and all(
        _finite(part) and len(name) <= LONGEST_NAME and name == clean(name) for name, part in parts.items()
    )


def _finite(number: Any) -> bool:
    return (type(number) is float or type(number) is int) and math.isfinite(number)


def _fault(kind: Any, text: Any, trace: Any, fields: Any) -> Fault:
    error = getattr(errors, kind, None) if isinstance(kind, str) else None
    known = isinstance(error, type) and issubclass(error, UserError)
    if not known or not isinstance(text, str) or not isinstance(trace, str) or not isinstance(fields, dict):
        raise BadReply
    return Fault(kind, clean(text), clean(trace), fields)


def clean(text: str) -> str:
    """The text without halves of surrogate pairs, which can't be written to a file."""
    return text.encode(errors="replace").decode()


def scored(row: Row, spec: VerifierSpec, case: Case | bytes) -> Score:
    """A row as the case's score: failed, if its value is outside the range of the spec or `steps` doesn't fit the episode."""
    value, parts, detail, steps = row
    if value is None:
        return Score(None, {}, detail or "the verifier gave no value")
    if not spec.low - SLACK <= value <= spec.high + SLACK:
        return Score(None, {}, f"the value is {value:g}, outside its range [{spec.low:g}, {spec.high:g}]")
    score = Score(value, parts, detail, tuple(steps))
    return with_right_steps(score, spec, case) if steps else score


def with_right_steps(score: Score, spec: VerifierSpec, case: Case | bytes) -> Score:
    """The score, or a failed one if it has not one of `steps` for each call or turn. Pickled cases are not looked into."""
    if not score.steps or isinstance(case, bytes):
        return score
    if not spec.rollout or not case.rollout:
        return Score(None, {}, f"it gave {len(score.steps)} steps, and the verifier sees no episode: its spec needs rollout=True")
    if len(score.steps) == (calls := case.rollout.num_calls):
        return score
    return Score(None, {}, f"it gave {len(score.steps)} steps, and the episode has {calls} calls or turns")

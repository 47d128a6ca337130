"""Scores of completions of stored rows, for trainers that call a function and know nothing of tasks.

The judge's workers are started by the first call and shared by all calls of the process. A score that is missing is never 0:
trainers that can't leave a completion out get a stand-in, with which it teaches as little as possible.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from mmrl import Score, Scoring, UserError, open_verifiers
from mmrl_interop.rows import read_stored

REMEMBERED = 65_536
"""Rows whose mean score is remembered."""
SETTINGS = ("num_workers", "timeout_s", "memory_mb", "isolation")
"""Settings of the judge, as in `mmrl.open_verifiers`."""

_opened: dict[tuple[int, str, str], Scoring] = {}
_lock = threading.Lock()


def scoring_of(stored: str, settings: dict[str, Any]) -> Scoring:
    """The verifiers of a row, opened once in each process. Raises UserError for unknown settings and verifiers."""
    row = read_stored(stored)
    key = os.getpid(), row.judge, repr(settings)
    with _lock:
        if key not in _opened:
            if unknown := [name for name in settings if name not in SETTINGS]:
                raise UserError(f"{unknown[0]!r} is no setting of mmrl's judge: use {', '.join(SETTINGS)}")
            _opened[key] = open_verifiers(row.verifiers, verifier_options=row.verifier_options, **settings)
        return _opened[key]


def score_rows(
    stored: Sequence[str],
    completions: Sequence[str],
    tokens: Sequence[int] | None = None,
    truncated: Sequence[bool] | None = None,
    **settings: Any,
) -> list[Score]:
    """[N] rows and a completion of each -> [N] scores; the rows may be of several tasks. tokens: the length of each completion.
    truncated: whether each was cut off."""
    by_judge: dict[int, tuple[Scoring, list[int]]] = {}
    for k, row in enumerate(stored):
        scoring = scoring_of(row, settings)
        by_judge.setdefault(id(scoring), (scoring, []))[1].append(k)
    found: dict[int, Score] = {}
    for scoring, places in by_judge.values():
        cases = [
            read_stored(stored[k]).completed(
                completions[k],
                tokens[k] if tokens is not None and scoring.needs_turns else None,
                truncated=bool(truncated and truncated[k]),
            )
            for k in places
        ]
        found |= dict(zip(places, scoring.score(cases), strict=True))
    return [found[k] for k in range(len(stored))]


class StandIns:
    """Values in the place of missing scores: the mean of the other scores of the same row, in this call and before, so that the
    completion has no advantage over its group; without any, the mean of its task, and at last the middle of the scores' range."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self._tasks: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def fill(self, stored: Sequence[str], scores: Sequence[Score], **settings: Any) -> list[float]:
        """[N] values, those of the scores where they aren't missing."""
        with self._lock:
            for row, score in zip(stored, scores, strict=True):
                if score.value is not None:
                    self._add(row, score.value)
            return [
                self._stand_in(row, settings) if score.value is None else score.value
                for row, score in zip(stored, scores, strict=True)
            ]

    def _add(self, row: str, value: float) -> None:
        key, task = hash(row), read_stored(row).task
        total, count = self._rows.pop(key, (0.0, 0))
        self._rows[key] = total + value, count + 1
        if len(self._rows) > REMEMBERED:
            self._rows.popitem(last=False)
        total, count = self._tasks.get(task, (0.0, 0))
        self._tasks[task] = total + value, count + 1

    def _stand_in(self, row: str, settings: dict[str, Any]) -> float:
        known = self._rows.get(hash(row)) or self._tasks.get(read_stored(row).task)
        if known:
            return known[0] / known[1]
        low, high = scoring_of(row, settings).value_range
        return (low + high) / 2


STAND_INS = StandIns()
"""Those of this process."""


def close() -> None:
    """Stop the workers of this process; a later call starts them again."""
    with _lock:
        own = [_opened.pop(key) for key in [*_opened] if key[0] == os.getpid()]
    for scoring in own:
        scoring.close()


atexit.register(close)

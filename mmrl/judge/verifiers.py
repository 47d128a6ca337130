"""Verifiers in their worker process: a function that scores a case, or a model that scores several."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from mmrl.api.processes.child import describe_error, short
from mmrl.api.types import Case, Score
from mmrl.judge.messages import LONGEST_NAME, MAX_PARTS, Row


class LoadedVerifier:
    """A verifier that is a function."""

    def __init__(self, function: Callable[[Case], Any]) -> None:
        self.function = function
        self.healthy = True
        """False after a MemoryError: the process is replaced, to free the verifier's memory."""
        self._process = os.getpid()

    def score(self, payload: bytes) -> Row:
        """Score one case, unpickled anew so that changes to it don't last; any error gives a failed row."""
        try:
            row = row_of(self.function(pickle.loads(payload)))
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt of a verifier are failures too
            self.healthy &= not isinstance(error, MemoryError)
            row = (None, {}, describe_error(error), [])
        if os.getpid() != self._process:  # a fork that came back from the verifier must not reply
            os._exit(0)
        return row


class BatchVerifier:
    """A verifier that is a model, which takes several cases at once."""

    def __init__(self, model: Callable[[list[Case]], Sequence[Any]]) -> None:
        self.model = model

    def score(self, payloads: list[bytes]) -> list[Row] | None:
        """One call; None if it raised, or one of its scores isn't one."""
        try:
            return self._score(payloads)
        except Exception:  # noqa: BLE001  scored alone, each case gives its own error
            return None

    def score_one(self, payload: bytes) -> Row:
        """One case; any error gives a failed row."""
        try:
            return self._score([payload])[0]
        except Exception as error:  # noqa: BLE001
            return None, {}, describe_error(error), []

    def _score(self, payloads: list[bytes]) -> list[Row]:
        results = self.model([pickle.loads(payload) for payload in payloads])
        if not isinstance(results, list | tuple) or len(results) != len(payloads):
            many = f"{len(results)} of them" if isinstance(results, list | tuple) else f"a {type(results).__name__}"
            raise BadScore(f"the model must give a list of {len(payloads)} scores, one for each case, and gave {many}")
        return [row_of(result) for result in results]


def row_of(result: Any) -> Row:
    """What a verifier returned as a row; the judge checks its range. Raises BadScore if it is not a score."""
    if not isinstance(result, Score):
        return _number(result, "the value is"), {}, "", []
    if result.value is None:
        return None, {}, short(result.detail), []
    value = _number(result.value, "the value is")
    if len(result.parts) > MAX_PARTS:
        raise BadScore(f"it gave {len(result.parts)} parts, more than {MAX_PARTS}")
    parts = {str(k)[:LONGEST_NAME]: _number(v, f"part {k!r:.50} is") for k, v in result.parts.items()}
    return value, parts, short(result.detail), [_number(s, "one of the steps is") for s in result.steps]


class BadScore(Exception):
    """A verifier returned something that is not a score."""

    plain = True


def _number(value: Any, what: str) -> float:
    """One finite number (bool, NumPy and torch scalars too) as a float. Raises BadScore for anything else."""
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return number
    raise BadScore(f"{what} {value if isinstance(value, float) else f'of type {type(value).__name__}'}, not a finite number")

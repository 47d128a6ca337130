"""Verifiers in their worker process: a function that scores a case, or a model that scores several."""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mmrl.api.processes.child import describe_error, short
from mmrl.api.types import Case, Score
from mmrl.judge.messages import LONGEST_NAME, MAX_PARTS, Row

LOST_GPU = ("CUDA error", "HIP error", "Triton Error [CUDA]")
"""Beginnings of errors, such as an illegal access to memory, after which each use of the GPU fails in the same process. That the
memory of a GPU didn't suffice is no such error, and begins otherwise."""


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
        self.healthy = True
        """False once this process can't use the GPU any more: it is replaced."""

    def score(self, payloads: list[bytes]) -> list[Row] | None:
        """One call; None if it raised, or one of its scores isn't one. Failed rows if the GPU is lost."""
        try:
            return self._score(payloads)
        except Exception as error:  # noqa: BLE001  scored alone, each case gives its own error
            failed = self._failed(error)
            return None if self.healthy else [failed] * len(payloads)

    def score_one(self, payload: bytes) -> Row:
        """One case; any error gives a failed row."""
        try:
            return self._score([payload])[0]
        except Exception as error:  # noqa: BLE001
            return self._failed(error)

    def free_memory(self) -> None:
        """Give back what torch keeps of the GPU's memory for the next call: the learner's update or its engine may need it."""
        torch = sys.modules.get("torch")
        if self.healthy and torch and torch.cuda.is_initialized():
            try:
                torch.cuda.empty_cache()
            except RuntimeError:  # it waits for the GPU, and so it is what sees an error of the last computation
                self.healthy = False

    def _failed(self, error: Exception) -> Row:
        self.healthy &= not _is_lost_gpu(error)
        return None, {}, describe_error(error), []

    def _score(self, payloads: list[bytes]) -> list[Row]:
        results = self.model([pickle.loads(payload) for payload in payloads])
        if not isinstance(results, list | tuple) or len(results) != len(payloads):
            many = f"{len(results)} of them" if isinstance(results, list | tuple) else f"a {type(results).__name__}"
            raise BadScore(f"the model must give a list of {len(payloads)} scores, one for each case, and gave {many}")
        return [row_of(result) for result in results]


def _is_lost_gpu(error: BaseException | None) -> bool:
    """Whether this error, or one that led to it, is one of `LOST_GPU`."""
    while error is not None and not (isinstance(error, RuntimeError) and str(error).startswith(LOST_GPU)):
        error = error.__cause__ or error.__context__
    return error is not None


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

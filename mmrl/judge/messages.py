"""Messages between the judge and its worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from mmrl.api.types import Case, Score


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

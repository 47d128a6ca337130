"""What the judge and its worker processes send each other."""

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
    """A verifier's may be pickled already, as `payload` does."""
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
    """Those still without a score; the first ones are answered first."""
    careful: bool = False
    """Have each result sent at once, because a worker died and it is not known on which case."""

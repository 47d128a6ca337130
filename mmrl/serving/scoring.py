"""Verifiers that are open for another program: the judge, started when it is first needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from mmrl.api.errors import UserError, did_you_mean
from mmrl.api.types import Case, Score
from mmrl.judge import Isolation, Judge, local_judge, specs_of
from mmrl.registry import plugins


def judge_of(
    verifiers: Mapping[str, float],
    options: Mapping[str, Mapping[str, Any]],
    num_workers: int,
    timeout_s: float | None,
    memory_mb: int | None,
    isolation: Isolation,
) -> Callable[[], Judge]:
    """A function that makes the judge of these verifiers. Raises UserError for unknown ids, and for options of another one."""
    named = {name: options.get(name, {}) for name in verifiers}
    specs_of(named)
    if unused := [name for name in options if name not in named]:
        raise UserError(f"verifier_options: {unused[0]!r} is no verifier of this task.{did_you_mean(unused[0], named)}")
    return partial(local_judge, named, num_workers, timeout_s, memory_mb, isolation)


class OpenedVerifiers:
    """See `mmrl.api.serving.Scoring`."""

    def __init__(
        self, weights: Mapping[str, float], options: Mapping[str, Mapping[str, Any]], judge: Callable[[], Judge]
    ) -> None:
        """judge: makes the judge."""
        specs = specs_of(weights)
        self.verifiers, self.verifier_options = weights, options
        self.needs_images = any(spec.images for spec in specs.values())
        self.needs_turns = any(spec.rollout for spec in specs.values())
        self._make, self._closed = judge, False
        self._judge: Judge | None = None
        self._lock = threading.Lock()

    @property
    def value_range(self) -> tuple[float, float]:
        registry = plugins.registry()
        specs = {n: registry.bounded_verifier(s, self.verifier_options.get(n)) for n, s in specs_of(self.verifiers).items()}
        ends = [sorted((w * specs[name].low, w * specs[name].high)) for name, w in self.verifiers.items()]
        return sum(low for low, _ in ends), sum(high for _, high in ends)

    def score(self, cases: Case | Sequence[Case]) -> Any:
        found = self._submitted(cases).result()
        return found[0] if isinstance(cases, Case) else found

    async def score_async(self, cases: Case | Sequence[Case]) -> Any:
        # the first call starts the workers, which takes a moment
        future = await asyncio.to_thread(self._submitted, cases) if self._judge is None else self._submitted(cases)
        found = await asyncio.wrap_future(future)
        return found[0] if isinstance(cases, Case) else found

    def ready(self) -> None:
        self._started().ready()

    def close(self) -> None:
        with self._lock:
            judge, self._judge, self._closed = self._judge, None, True
        if judge is not None:
            judge.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _started(self) -> Judge:
        with self._lock:
            if self._closed:
                raise UserError("it is closed: open it again to score")
            self._judge = self._judge or self._make()
            return self._judge

    def _submitted(self, cases: Case | Sequence[Case]) -> Future[list[Score]]:
        several = [cases] if isinstance(cases, Case) else list(cases)
        if odd := [case for case in several if not isinstance(case, Case)]:
            raise UserError(f"score() takes mmrl.Case, not {type(odd[0]).__name__}: make cases with case() or case_from_json()")
        return self._started().submit(several, [self.verifiers] * len(several))


def open_verifiers(
    verifiers: Mapping[str, float],
    *,
    verifier_options: Mapping[str, Mapping[str, Any]],
    num_workers: int,
    timeout_s: float | None,
    memory_mb: int | None,
    isolation: Isolation,
) -> OpenedVerifiers:
    """See `mmrl.api.serving.open_verifiers`."""
    if not verifiers:
        raise UserError('no verifiers are named: give some, {"plugin/name": 1.0}')
    judge = judge_of(verifiers, verifier_options, num_workers, timeout_s, memory_mb, isolation)
    return OpenedVerifiers(dict(verifiers), verifier_options, judge)

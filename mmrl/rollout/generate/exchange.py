"""New weights in the middle of answers: a learner interrupts its sampler between two tokens, and the answers go on with the new
weights (AReaL, arXiv 2505.24298, section 4.1; LlamaRL, arXiv 2505.24034, calls such answers partial rollouts)."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

Stretch = tuple[int, int]
"""(policy version, number of tokens that its weights sampled next to each other)."""


class WeightExchange:
    """Whose turn it is: of a sampler, which reads the weights in one thread, or of a learner, which changes them in another."""

    def __init__(self) -> None:
        self.version: int | None = None
        """Number of training steps that the sampler's weights have seen; None if they were not given by `changing`."""
        self.wanted = False
        """A learner waits; a sampler looks after each token."""
        self._turn = threading.Condition()
        self._sampling = False

    @contextlib.contextmanager
    def changing(self, version: int) -> Iterator[None]:
        """The learner's side: the sampler is interrupted, and goes on after the context with weights of this version."""
        with self._turn:
            self.wanted = True
            try:
                self._turn.wait_for(lambda: not self._sampling)
                yield
                self.version = version
            finally:
                self.wanted = False
                self._turn.notify_all()

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """The sampler's side: inside, the weights change only in `let_in`."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    def let_in(self) -> None:
        """Let the waiting learner change the weights; return when it has."""
        self._end()
        self._begin()

    def _begin(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: not self.wanted)
            self._sampling = True

    def _end(self) -> None:
        with self._turn:
            self._sampling = False
            self._turn.notify_all()


def taking_turns(exchange: WeightExchange | None) -> contextlib.AbstractContextManager[None]:
    """`WeightExchange.sampling`; nothing without an exchange."""
    return exchange.sampling() if exchange else contextlib.nullcontext()


class Versions:
    """The versions of the weights that sample answers which are decoded together."""

    def __init__(self, exchange: WeightExchange | None) -> None:
        """exchange: None if the weights can't change."""
        self.exchange = exchange
        self.changes: list[tuple[int, int]] = []
        """(number of tokens of each answer, version of the weights that sample the next ones)."""
        self.note(0)

    def note(self, tokens: int) -> None:
        """From this token on the answers are sampled with the present weights."""
        if self.exchange and self.exchange.version is not None:
            self.changes.append((tokens, self.exchange.version))

    def of(self, length: int) -> tuple[Stretch, ...]:
        """The stretches of an answer of `length` tokens, in their order; none if the versions aren't known."""
        found: list[Stretch] = []
        for (first, version), (end, _) in itertools.pairwise([*self.changes, (length, -1)]):
            if min(end, length) > first:
                before = found.pop()[1] if found and found[-1][0] == version else 0
                found.append((version, before + min(end, length) - first))
        return tuple(found)

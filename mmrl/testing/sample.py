"""Helpers for checks: sampled rows of a task, their fingerprints, global random states, a time limit."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from mmrl.api.errors import PluginError, UserError
from mmrl.api.interfaces import Task
from mmrl.api.media.content import canonical_form, form_of_part
from mmrl.api.types import Prompt


def sample_rows(task: Task, split: str, limit: int, seed: int = 0, broken: list[str] | None = None) -> list[Prompt]:
    """At most `limit` rows of a split: spread evenly over a sequence, or the first rows of any other iterable.

    broken: a list that gets the message of each row that can't be used; without it such a row raises UserError.
    """
    rows: Any = task.prompts(split, seed)
    return list(rows_at(rows, evenly(len(rows), limit) if is_sequence(rows) else range(limit), broken))


def is_sequence(rows: Any) -> bool:
    """Whether rows can be accessed by index."""
    return hasattr(rows, "__len__") and hasattr(rows, "__getitem__")


def evenly(there: int, count: int) -> list[int]:
    """At most `count` indices of a sequence of length `there`, spread evenly from the first to the last."""
    count = min(count, there)
    return [i * (there - 1) // max(count - 1, 1) for i in range(count)]


def rows_at(rows: Any, places: Iterable[int], broken: list[str] | None = None) -> Iterator[Prompt]:
    """The rows at these indices of a sequence; of any other iterable as many rows as there are indices. Rows are made one by one.
    broken: see `sample_rows`."""
    iterator = None if is_sequence(rows) else iter(rows)
    for place in places:
        try:
            row = rows[place] if iterator is None else next(iterator)
        except StopIteration:
            return
        except PluginError:
            raise
        except UserError as error:  # runs leave out broken rows too
            if broken is None:
                raise
            broken.append(str(error))
        else:
            yield row


def fingerprint(prompt: Prompt) -> str:
    """A hash of a whole prompt, including the content of its images."""
    fields = {f.name: getattr(prompt, f.name) for f in dataclasses.fields(prompt) if f.name != "messages"}
    return _hash((canonical_form(fields), prompt_hash(prompt)))


def prompt_hash(prompt: Prompt) -> str:
    """A hash of what the policy reads: roles, texts and the content of images, videos and sounds."""
    parts = []
    for message in prompt.messages:
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            parts.append((message["role"], part["type"], form_of_part(part)))
    return _hash(parts)


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()


def random_states() -> dict[str, bytes]:
    """Library -> state of its global random generator, for loaded libraries."""
    states = {"random": pickle.dumps(random.getstate())}
    if numpy := sys.modules.get("numpy"):
        states["numpy.random"] = pickle.dumps(numpy.random.get_state())
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


@contextlib.contextmanager
def other_random_states(seed: int) -> Iterator[None]:
    """Inside the block, the global generators have another state, drawn from the seed; their states are restored at the end."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    before = random.getstate(), numpy and numpy.random.get_state(), torch and torch.get_rng_state()
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed)
    if torch:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy:
            numpy.random.set_state(before[1])
        if torch:
            torch.set_rng_state(before[2])


class TimeIsUp(BaseException):
    """A time limit was reached. Not an Exception, so that a verifier's own `except Exception` does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in the block after some seconds. Only possible in the main thread on Unix; elsewhere there is no limit."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TimeIsUp

    handler = signal.signal(signal.SIGALRM, stop)
    outer, start = signal.setitimer(signal.ITIMER_REAL, seconds)[0], time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer:  # another timer was set, such as a test's: continue it
            signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - start), 0.001))

"""A policy that stands on another has it read a call's pictures once: for its hidden states, and to act."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mmrl.api.simulators.types import Observation

Read = TypeVar("Read", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Observation):
    """Observations that remember what policies read of them, by those of their methods that `read_once`. Give one and the same to
    `states_of`, `features` and `choose` of a policy whose weights don't change meanwhile. What is made of it, by `on`, `rows` or
    `replace`, remembers nothing of it."""

    read: dict[tuple[Any, Callable[..., Any]], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """(policy, method) -> what it returned."""

    @classmethod
    def at(cls, seen: Observation) -> Look:
        """A new one."""
        return cls(images=seen.images, state=seen.state, instructions=seen.instructions)


def read_once(method: Read) -> Read:
    """Decorate a policy's pass over observations, its only argument. Of a `Look` it is made once, and nobody may change what it
    returned. A policy without such a method reads as often as it is asked."""

    @functools.wraps(method)
    def found(policy: Any, seen: Observation) -> Any:
        if not isinstance(seen, Look):
            return method(policy, seen)
        if (policy, method) not in seen.read:
            seen.read[policy, method] = method(policy, seen)
        return seen.read[policy, method]

    return found  # type: ignore[return-value]  # it is called as the method is

"""Methods whose answers are remembered as long as their object lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def once(method: F) -> F:
    """The method, called once for each object and positional arguments. `functools.cache` would hold the objects for ever."""
    name = f"_known_{method.__name__}"

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        known = vars(self).setdefault(name, {})
        if args not in known:
            known[args] = method(self, *args)
        return known[args]

    return call  # type: ignore[return-value]

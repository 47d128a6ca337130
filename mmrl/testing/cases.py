"""Parameters of tests of which a few run every day, or in CI, and the others with the long tests, or with all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], *, everyday: int) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: the first `everyday` as they are, the others marked slow."""
    cases = list(cases)
    return [*cases[:everyday], *(_marked(case, pytest.mark.slow) for case in cases[everyday:])]


def some_of(cases: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """Parameters of a slow test of many like cases: the `chosen` as they are, the others marked exhaustive, which CI leaves out
    and `make test-all` runs. Raises ValueError for a chosen one that is no case."""
    cases = list(cases)
    if strange := set(chosen) - set(cases):
        raise ValueError(f"{', '.join(map(str, strange))}: no such cases")
    return [case if case in chosen else _marked(case, pytest.mark.exhaustive) for case in cases]


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    if hasattr(case, "marks"):  # a `pytest.param`
        return pytest.param(*case.values, marks=[*case.marks, mark], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)

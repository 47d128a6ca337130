"""Parameters of tests of which a few run every day and the others with the long tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], *, everyday: int) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: the first `everyday` as they are, the others marked slow."""
    cases = list(cases)
    return [*cases[:everyday], *(_slow(case) for case in cases[everyday:])]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):  # a `pytest.param`
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

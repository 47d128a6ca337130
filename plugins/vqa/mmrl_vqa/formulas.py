"""Parsing of formulas for comparison, with limits so that math-verify takes bounded time."""

from __future__ import annotations

import re
from typing import Any

from mmrl.api.verifiers import mathematics

MAX_FORMULA = 300
"""Maximum of characters of a formula."""
_NAME = re.compile(r"[A-Za-z]{2,}")
_PLAIN = frozenset(
    (
        *("frac", "dfrac", "tfrac", "sqrt", "pi", "cdot", "times", "div", "left", "right", "text", "mathrm", "circ", "pm"),
        *("infty", "ln", "log", "sin", "cos", "tan", "exp", "alpha", "beta", "theta", "cup", "cap", "in", "le", "leq", "ge"),
        *("geq", "lt", "gt", "ne", "neq", "degree", "boxed", "dots", "ldots", "quad", "%", "$", ",", "!", ";", " ", "{", "}"),
        *("(", ")", "[", "]", ":"),
    )
)
"""Allowed commands of LaTeX: no sums, integrals or limits."""
_COSTLY = ("sqrt", "sin", "cos", "tan", "log", "ln", "exp", "^", "cup", "cap")


def formula(text: str) -> list[Any]:
    """One formula, in LaTeX or plain, with or without dollar signs; empty if it is not a formula or too complex to compare."""
    inside = text.strip().strip("$").strip()
    if not inside or len(inside) > MAX_FORMULA:
        return []
    commands = mathematics.COMMAND.findall(inside)
    names = _NAME.findall(mathematics.COMMAND.sub(" ", inside))
    if (
        mathematics.is_too_expensive(f"${inside}$")
        or "!" in inside.replace("\\!", "")
        or not set(commands) <= _PLAIN
        or len(names) > 6
        or sum(inside.count(c) for c in _COSTLY) > 8
        or re.search(r"\d{30}", inside)
    ):
        return []
    try:
        return mathematics.parse_math(f"${inside}$") or mathematics.parse_math(inside)
    except Exception:  # noqa: BLE001  unreadable texts are no formulas
        return []

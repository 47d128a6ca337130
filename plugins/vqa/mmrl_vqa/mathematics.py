"""math-verify without its signals, and not on what it would compute for hours. The judge keeps the deadline."""

from __future__ import annotations

import logging
import re
from typing import Any

import math_verify

MAX_MATH = 20_000
"""Characters that math-verify is given; its patterns take quadratic time."""
MAX_FORMULA = 300
"""Characters of a formula that ours compares."""
_EXPONENT = re.compile(r"(\S)\s*(?:\^|\*\*)[\s({-]*(\d+)")
_TOWER = re.compile(
    r"(?:\^|\*\*)\s*[{(][^{}()]*(?:\^|\*\*|exp)|(?:\^|\*\*)\s*-?(?:\d+|[A-Za-z])\s*(?:\^|\*\*)|(?:\^|\*\*)\s*\{[^{}]*\}\s*\^"
    r"|exp\W*exp|exp\s*(?:\\left)?\s*[({][^)}]*(?:exp|\^|\*\*)"
)
"""A power or an exponential in an exponent."""
_PRODUCT = re.compile(r"\)\s*(?:\\cdot|\\times|\*)?\s*(?:\\left)?\s*\(")
_FACTORIAL = re.compile(r"\d{3,}[\s)}]*!|!\s*!")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z]{2,}")
_SIGN = re.compile(r"[A-Za-z]")
_PLAIN = frozenset(
    (
        *("frac", "dfrac", "tfrac", "sqrt", "pi", "cdot", "times", "div", "left", "right", "text", "mathrm", "circ", "pm"),
        *("infty", "ln", "log", "sin", "cos", "tan", "exp", "alpha", "beta", "theta", "cup", "cap", "in", "le", "leq", "ge"),
        *("geq", "lt", "gt", "ne", "neq", "degree", "boxed", "dots", "ldots", "quad", "%", "$", ",", "!", ";", " ", "{", "}"),
        *("(", ")", "[", "]", ":"),
    )
)
"""Commands of LaTeX that ours hands on: none sums, integrates or takes a limit."""
_COSTLY = ("sqrt", "sin", "cos", "tan", "log", "ln", "exp", "^", "cup", "cap")

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that its own timeouts are off: the judge has the deadline


def read(text: str) -> list[Any]:
    """What math-verify finds in a text; nothing where it would take too long."""
    # a timeout of 0 is none: math-verify's own use signals
    return [] if explosive(text) else math_verify.parse(text, parsing_timeout=0)


def same(gold: list[Any], target: list[Any]) -> bool:
    """math-verify's comparison, in the order of its arguments; nothing equals nothing."""
    return bool(gold and target and math_verify.verify(gold, target, timeout_seconds=0))


def equal(completion: str, answer: str) -> bool:
    """Whether math-verify finds something in both and calls it equal; whatever it can't compare is unequal, as in all the
    published code that this serves."""
    try:
        wanted = math_verify.parse(answer, parsing_timeout=0)
        return bool(wanted) and same(read(completion), wanted)
    except Exception:  # noqa: BLE001  the published rule
        return False


def explosive(text: str) -> bool:
    """Too long for math-verify, or what it would compute for minutes or hours: towers of powers, high powers of sums, factorials,
    brackets in brackets in brackets."""
    if len(text) > MAX_MATH:
        return True
    exponents = _EXPONENT.findall(text)
    sums = [power for base, power in exponents if base in ")}"]
    letters = len(set(_SIGN.findall(_COMMAND.sub(" ", text))))
    many = letters > 2
    return (
        any(len(power) > (3 if base.isdigit() else 2) for base, power in exponents)
        or sum(len(power) > 1 for _, power in exponents) > 4
        or any(len(power) > 2 or int(power) > (3 if many else 20) for power in sums)
        or sum(int(power) > 2 for power in sums) > (1 if many else 3)
        or (letters > 6 and len(_PRODUCT.findall(text)) > 2)
        or bool(_TOWER.search(text))
        or (any(c in text for c in "$\\[") and bool(_FACTORIAL.search(text)))
        or _nested(text) > 20
    )


def _nested(text: str) -> int:
    """How much stands in more brackets than four: the grammar of LaTeX tries each of these in several ways."""
    depth = deep = 0
    for sign in text:
        depth += (sign in "({[") - (sign in ")}]")
        depth = max(depth, 0)
        deep += max(depth - 4, 0) if sign in "({[" else 0
    return deep


def formula(text: str) -> list[Any]:
    """One formula, in LaTeX or plain, with or without dollar signs; nothing where it is none or too much to compare."""
    inside = text.strip().strip("$").strip()
    commands = _COMMAND.findall(inside)
    names = _NAME.findall(_COMMAND.sub(" ", inside))
    if (
        not inside
        or len(inside) > MAX_FORMULA
        or explosive(f"${inside}$")
        or "!" in inside.replace("\\!", "")
        or not set(commands) <= _PLAIN
        or len(names) > 6
        or sum(inside.count(c) for c in _COSTLY) > 8
        or re.search(r"\d{30}", inside)
    ):
        return []
    try:
        return math_verify.parse(f"${inside}$", parsing_timeout=0) or math_verify.parse(inside, parsing_timeout=0)
    except Exception:  # noqa: BLE001  whatever it can't read is no formula
        return []

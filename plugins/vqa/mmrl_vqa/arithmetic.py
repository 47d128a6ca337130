"""Exact arithmetic with whole numbers: a small parser without `eval` and floats."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_LENGTH = 120
"""Characters of a formula; four cards take 20."""
MAX_DIGITS = 12
_TOKEN = re.compile(r"\d+|[-+*/()]")
_SIGNS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", "\u2013": "-", "[": "(", "]": ")"})


class Illegal(ValueError):
    """The text is not a formula; the message says why, for people and policies."""


class DividesByZero(Illegal):
    """The formula has no value."""


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """(value, the numbers in order) of a formula of whole numbers, + - * / and brackets.

    The signs \u00d7 \u00b7 \u00f7 \u2212 are read too. A minus sign of a number is not allowed: there are no negative cards.
    Raises Illegal.
    """
    tokens = tokens_of(text)
    value, at = _sum(tokens, 0, 0)
    if at < len(tokens):
        raise Illegal(
            "a closing bracket has no opening one" if tokens[at] == ")" else f"{tokens[at]!r} stands where an operator should"
        )
    return value, [int(t) for t in tokens if t.isdigit()]


def tokens_of(text: str) -> list[str]:
    """Numbers, operators and brackets. Blanks are ignored. Raises Illegal for anything else."""
    if len(text) > MAX_LENGTH:
        raise Illegal(f"it is longer than {MAX_LENGTH} characters")
    if re.search(r"\d\s+\d", text):
        raise Illegal("two numbers stand next to each other")
    plain = "".join(text.translate(_SIGNS).split())
    tokens = _TOKEN.findall(plain)
    if not plain:
        raise Illegal("it is empty")
    if "".join(tokens) != plain or not plain.isascii():
        odd = next(c for c in plain if c not in "0123456789+-*/()")
        raise Illegal(f"{odd!r} is no number, operator or bracket")
    if any(len(t) > MAX_DIGITS for t in tokens):
        raise Illegal("a number is too long")
    return tokens


def _sum(tokens: list[str], at: int, depth: int) -> tuple[Fraction, int]:
    value, at = _product(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "+-":
        other, end = _product(tokens, at + 1, depth)
        value, at = (value + other if tokens[at] == "+" else value - other), end
    return value, at


def _product(tokens: list[str], at: int, depth: int) -> tuple[Fraction, int]:
    value, at = _operand(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "*/":
        other, end = _operand(tokens, at + 1, depth)
        if tokens[at] == "/" and other == 0:
            raise DividesByZero("it divides by zero")
        value, at = (value * other if tokens[at] == "*" else value / other), end
    return value, at


def _operand(tokens: list[str], at: int, depth: int) -> tuple[Fraction, int]:
    if at >= len(tokens):
        raise Illegal("it ends with an operator or an open bracket" if tokens else "it is empty")
    if tokens[at].isdigit():
        return Fraction(int(tokens[at])), at + 1
    if tokens[at] != "(":
        raise Illegal(f"{tokens[at]!r} stands where a number or an opening bracket should")
    if depth > MAX_LENGTH // 2:
        raise Illegal("its brackets are nested too deep")
    value, at = _sum(tokens, at + 1, depth + 1)
    if at >= len(tokens) or tokens[at] != ")":
        raise Illegal("an opening bracket is not closed")
    return value, at + 1

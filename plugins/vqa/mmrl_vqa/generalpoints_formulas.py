"""What GeneralPoints' released code pays for a formula and says of it, faults included (github.com/LeslieTrue/SFTvsRL, commit
5a6ea55, `utils_rl.py`; the solver is that of `gym/gym_cards/envs/general_points_oneline.py`).

Chu et al. 2025, "SFT Memorizes, RL Generalizes: A Comparative Study of Foundation Model Post-training".
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CORRECT, PARTIAL, NO_SOLUTION, NUMBERS, ILLEGAL = 5.0, 1.0, -1.0, -2.0, -3.0
_TOKEN = re.compile(r"\d+|[+\-*/()]")
_BRACKETS = (((), ()), ((0,), (1,)), ((0,), (2,)), ((1,), (2,)), ((1,), (3,)), ((2,), (3,)), ((0, 2), (1, 3)))
"""Where the solver opens and closes brackets: before and after which of the four numbers."""
MAX_NESTING = 100
"""Python's own parser, which the published code uses, gives up at 200."""


MAX_DIGITS = 4_000
"""Python reads no longer number."""
MAX_TOLD = 200
"""Faults that are told."""


class Verdict(NamedTuple):
    reward: float
    """The sum over all faults; or that of the total, where there is no fault."""
    message: str
    """What the policy is told."""


def judge(formula: str, numbers: Sequence[int], target: int) -> Verdict:
    """The verdict on a formula without its "=", for the numbers of a hand.

    Each token that can't follow the one before costs 3, so does the first illegal character, and nothing more is judged then;
    numbers that are not on the cards, or too often, cost 2, and those left out 2 more. A formula without such faults earns 5 if
    it makes the target in floats, and -1 otherwise. As published: 8/(3-8/3) is not 24 in floats, but a solution, so that it earns
    0; a missing closing bracket is no fault, so that the formula earns 1 if it begins a solution, and -1 otherwise; the empty
    formula lacks the numbers and no more.
    """
    tokens = _TOKEN.findall(formula)
    if "".join(tokens) != formula:
        return Verdict(ILLEGAL, "illegal characters.")
    found = [(ILLEGAL, what) for what in _misplaced(tokens)]
    used = [int(t) if len(t) < MAX_DIGITS else -1 for t in tokens if t[0].isdecimal()]
    found += [(NUMBERS, what) for what in _miscounted(used, numbers)]
    if not found:
        found = _total(formula, tokens, tuple(sorted(numbers)), target)
    return Verdict(sum(reward for reward, _ in found), ", ".join(what for _, what in found[:MAX_TOLD]) + ".")


def _misplaced(tokens: Sequence[str]) -> list[str]:
    """A sentence for each token that can't stand where it does."""
    found, before, opened = [], "", 0
    for token in tokens:
        kind = token if token in "()" else "+" if token in "+-*/" else "number"
        if kind == "number" and before not in ("", "+", "("):
            found.append("invalid sequence after number")
        elif kind == "+" and before not in ("number", ")"):
            found.append("invalid sequence after operator")
        elif kind == "(":
            if before in ("", "+", "("):
                opened += 1
            else:
                found.append("invalid sequence before '('")
        elif kind == ")":
            if before not in ("number", ")"):
                found.append("invalid sequence after ')'")
            elif opened:
                opened -= 1
            else:
                found.append("unmatched closing parenthesis")
        before = kind
    return found


def _miscounted(used: Sequence[int], numbers: Sequence[int]) -> list[str]:
    """A sentence for numbers that are not on the cards or used too often, and one for those that are left out."""
    wanted, counts = Counter(numbers), Counter(used)
    found = []
    if strange := [n for n in counts if n not in wanted]:
        found.append(f"you used invalid numbers: {strange}")
    elif often := [n for n in counts if counts[n] > wanted[n]]:
        found.append(f"you used numbers: {often} too many times")
    if left := [n for n in wanted if wanted[n] > counts[n]]:
        found.append(f"you didn't use numbers: {left}")
    return found


def _total(formula: str, tokens: Sequence[str], numbers: tuple[int, ...], target: int) -> list[tuple[float, str]]:
    """What a formula of exactly the numbers makes."""
    begun = beginnings(numbers, target)
    try:
        if value(tokens) == target:
            return [(CORRECT, "Correct solution")]
    except (ValueError, ZeroDivisionError):
        if formula in begun:
            return [(PARTIAL, "partial solution")]
    right = ""
    for token in tokens:
        if right + token not in begun:
            said = f"{right} is partially correct but the full formula does" if right else "your formula does"
            return [(NO_SOLUTION, f"{said} not match any solution")]
        right += token
    return []


@functools.lru_cache(maxsize=1024)
def beginnings(numbers: tuple[int, ...], target: int) -> frozenset[str]:
    """Every beginning of a solution that the published solver finds: of all orders, operators and seven ways to set brackets."""
    orders = sorted(set(itertools.permutations(numbers)))
    columns = [np.array(column, dtype=float) for column in zip(*orders, strict=True)]
    found: set[str] = set()
    for signs in itertools.product("+-*/", repeat=len(numbers) - 1):
        for opening, closing in _BRACKETS:
            tokens = _written(["a", "b", "c", "d"], signs, opening, closing)
            with np.errstate(all="ignore"):  # no quotient by 0 makes a finite total
                totals = value(tokens, dict(zip("abcd", columns, strict=True)))
            for i in np.flatnonzero(np.abs(totals - target) < 1e-6):  # two totals of four cards are never as near as this
                solution = _written([str(n) for n in orders[i]], signs, opening, closing)
                found.update("".join(solution[:end]) for end in range(len(solution) + 1))
    return frozenset(found)


def _written(numbers: Sequence[str], signs: Sequence[str], opening: Sequence[int], closing: Sequence[int]) -> list[str]:
    tokens: list[str] = []
    for i, number in enumerate(numbers):
        tokens += ["("] * (i in opening) + [number] + [")"] * (i in closing) + list(signs[i : i + 1])
    return tokens


def value(tokens: Sequence[str], names: dict[str, np.ndarray] | None = None) -> np.ndarray | float:
    """What Python computes for a formula of tokens: whole numbers and, behind a quotient, floats. names: operands that are not
    numbers. Raises ValueError where Python has a syntax error, and ZeroDivisionError."""
    if any((len(t) > 1 and t[0] == "0") or not t.isascii() for t in tokens):
        raise ValueError("Python reads no such number")
    total, at = _sum(tokens, 0, names or {}, 0)
    if at < len(tokens):
        raise ValueError("a bracket is closed that was never opened")
    return total


def _sum(tokens: Sequence[str], at: int, names: dict, depth: int) -> tuple:
    total, at = _product(tokens, at, names, depth)
    while at < len(tokens) and tokens[at] in "+-":
        other, end = _product(tokens, at + 1, names, depth)
        total, at = (total + other if tokens[at] == "+" else total - other), end
    return total, at


def _product(tokens: Sequence[str], at: int, names: dict, depth: int) -> tuple:
    total, at = _operand(tokens, at, names, depth)
    while at < len(tokens) and tokens[at] in "*/":
        other, end = _operand(tokens, at + 1, names, depth)
        total, at = (total * other if tokens[at] == "*" else total / other), end
    return total, at


def _operand(tokens: Sequence[str], at: int, names: dict, depth: int) -> tuple:
    if at >= len(tokens) or depth > MAX_NESTING:
        raise ValueError("the formula ends too early, or is nested too deep")
    if tokens[at] != "(":
        return (names[tokens[at]] if tokens[at] in names else int(tokens[at])), at + 1
    total, at = _sum(tokens, at + 1, names, depth + 1)
    if at >= len(tokens) or tokens[at] != ")":
        raise ValueError("a bracket is not closed")
    return total, at + 1

"""The card game of 24: make 24 from four cards, each used once. Rules, solver, verdict on an answer, and our verifier."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

from mmrl import Case, Score, UserError
from mmrl.api.verifiers.parse import find_json
from mmrl_vqa.arithmetic import MAX_LENGTH, Illegal, evaluate
from mmrl_vqa.verifiers import given

RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
FACES = ("10", "11-13")
"""Values of jack, queen and king: 10 each, or 11, 12 and 13."""
TARGET = 24
REWARDS = {"right": 1.0, "wrong-total": 0.1, "not-the-cards": 0.0, "illegal": 0.0}
"""Rewards of `verdict` by default."""
Kind = Literal["right", "wrong-total", "not-the-cards", "illegal"]


class Verdict(NamedTuple):
    """The verdict on an answer."""

    kind: Kind
    message: str
    """The error, for the policy; in a game of several turns it answers to this."""
    reward: float


class Answer(NamedTuple):
    """A parsed answer."""

    formula: str
    """Without the text from "=" on; empty if there is none."""
    total: str | None
    """The value that it claims."""
    cards: tuple[str, ...] | None
    """The ranks that it names; None without any."""


def points(rank: str, faces: str) -> int:
    """The value of a card. rank: of `RANKS`. faces: of `FACES`. Raises UserError for others."""
    if faces not in FACES or rank not in RANKS:
        raise UserError(
            f"card {rank!r} with faces = {faces!r} is unknown: ranks are {', '.join(RANKS)}, faces {' or '.join(FACES)}"
        )
    count = RANKS.index(rank) + 1
    return min(count, 10) if faces == "10" else count


def verdict(cards: Sequence[str], text: str, faces: str = "10", target: int = TARGET) -> Verdict:
    """Judges an answer to a hand; pure. cards: ranks, such as ("A", "10", "K", "6"). text: the answer without tags: a formula, "=
    24" behind it or not, or JSON with "formula" and perhaps "cards".

    kind: right; wrong-total, a legal formula of exactly these cards that makes something else; not-the-cards, a legal formula of
    other numbers or with a card left out; illegal, no formula at all.
    """
    wanted = [points(card, faces) for card in cards]
    kind, message = _judge(wanted, read(text), target)
    return Verdict(kind, message, REWARDS[kind])


def points24(case: Case, recognition: float = 0.0) -> Score:
    """The game of 24 on the cards of `meta["cards"]` with `meta["faces"]`: 1 for a formula of exactly these cards that makes 24,
    0.1 for one that makes something else, 0 for other numbers or no formula.

    recognition: the share of the reward, 0 to 1, that is for the cards themselves: those that the answer names, or else the
    numbers in its formula, are the cards.
    Known exploits: adding up the cards earns 0.1 (and the recognition) without any search.
    """
    text, why = given(case)
    if "cards" not in case.meta:
        raise ValueError("meta has no cards: they are needed to judge the game")
    cards, faces = tuple(case.meta["cards"]), case.meta.get("faces", "10")
    if text is None:
        return Score(0.0, detail=why)
    judged = verdict(cards, text, faces, case.meta.get("target", TARGET))
    seen = float(recognised(cards, text, faces))
    # only a legal formula earns the share of recognition
    seen *= judged.kind != "illegal"
    return Score(
        (1 - recognition) * judged.reward + recognition * seen,
        parts={"formula": judged.reward, "cards": seen},
        detail=judged.message,
    )


def recognised(cards: Sequence[str], text: str, faces: str) -> bool:
    """Whether the answer names exactly these cards or, where it names none, computes with exactly their numbers."""
    answer = read(text)
    if answer.cards is not None:
        return sorted(answer.cards) == sorted(cards)
    try:
        return sorted(evaluate(answer.formula)[1]) == sorted(points(card, faces) for card in cards)
    except Illegal:
        return False


def read(text: str) -> Answer:
    """The answer in a text: JSON with a "formula", or the text itself."""
    if len(text) > 40 * MAX_LENGTH:
        return Answer("", None, None)
    found = find_json(text, dict) if "{" in text else None
    if found is None:
        formula, cards = text, None
    else:
        formula = found.get("formula")
        named = found.get("cards")
        cards = tuple(str(c).strip().upper() for c in named) if isinstance(named, list) and len(named) <= 16 else None
    formula, mark, total = formula.partition("=") if isinstance(formula, str) else ("", "", "")
    return Answer(formula.strip(), total.strip() if mark else None, cards)


def _judge(wanted: list[int], answer: Answer, target: int) -> tuple[Kind, str]:
    try:
        total, used = evaluate(answer.formula)
    except Illegal as error:
        return "illegal", f"Your formula is illegal: {error}."
    if answer.total not in (None, str(target), f"{target}."):
        return "illegal", f"Your formula is illegal: behind the equals sign must stand {target}."
    missing, extra = Counter(wanted) - Counter(used), Counter(used) - Counter(wanted)
    if missing or extra:
        said = [f"{_list(extra)} is not on the cards, or used too often"] if extra else []
        said += [f"{_list(missing)} is not used"] if missing else []
        return "not-the-cards", f"Use each card exactly once: {' and '.join(said)}."
    if total != target:
        return "wrong-total", f"Your formula makes {total}, not {target}."
    return "right", "Correct."


def _list(counts: Counter[int]) -> str:
    return ", ".join(str(n) for n in sorted(counts.elements())[:8])


# -- solving ----------------------------------------------------------------------------------------------------------------


class _Node(NamedTuple):
    """A sum (what is added, what is taken away), a product (what multiplies, what divides), or a number, as its own text."""

    sign: str
    ups: tuple[_Node | str, ...]
    downs: tuple[_Node | str, ...]


@functools.lru_cache(maxsize=4096)
def solutions(numbers: tuple[int, ...], target: int = TARGET) -> tuple[str, ...]:
    """The formulas that make the target of these numbers, each used once, the shortest first.

    Formulas that differ by order or by brackets within a sum or a product only, as a-(b-c) and a+c-b, count as one.
    """
    found: set[_Node] = set()
    for left, right in _halves(tuple(sorted(numbers))):
        others = _formulas(right)
        for a, firsts in _formulas(left).items():
            for sign, b in _partners(a, Fraction(target)):
                found.update(_join(sign, x, y) for x in firsts for y in others.get(b, ()))
    return tuple(sorted((_written(node) for node in found), key=lambda text: (len(text), text)))


def _partners(a: Fraction, target: Fraction) -> Iterator[tuple[str, Fraction]]:
    """Operators and the operands with which they make the target from `a`, which is not 0."""
    yield "+", target - a
    yield "-", a - target
    if a:
        yield "*", target / a
        yield "/", a / target


@functools.lru_cache(maxsize=4096)
def _formulas(numbers: tuple[int, ...]) -> dict[Fraction, frozenset[_Node | str]]:
    """Value -> the formulas of exactly these numbers."""
    if len(numbers) == 1:
        return {Fraction(numbers[0]): frozenset((str(numbers[0]),))}
    found: dict[Fraction, set[_Node | str]] = {}
    for left, right in _halves(numbers):
        for (a, firsts), (b, seconds) in itertools.product(_formulas(left).items(), _formulas(right).items()):
            for sign, value in (("+", a + b), ("-", a - b), ("*", a * b), ("/", a / b if b else None)):
                if value is not None:
                    joined = (_join(sign, x, y) for x in firsts for y in seconds)
                    found.setdefault(value, set()).update(joined)
    return {value: frozenset(nodes) for value, nodes in found.items()}


def _halves(numbers: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each way to cut a hand in two, once."""
    cuts = dict.fromkeys(
        (tuple(numbers[i] for i in places), tuple(n for i, n in enumerate(numbers) if i not in places))
        for size in range(1, len(numbers))
        for places in itertools.combinations(range(len(numbers)), size)
    )
    return iter(cuts)


def _join(sign: str, first: _Node | str, second: _Node | str) -> _Node:
    """Two formulas joined, in the canonical form."""
    kind = "+" if sign in "+-" else "*"
    ups, downs = _sides(kind, first)
    more, less = _sides(kind, second)
    if sign in "-/":
        more, less = less, more
    return _Node(kind, tuple(sorted((*ups, *more), key=str)), tuple(sorted((*downs, *less), key=str)))


def _sides(kind: str, node: _Node | str) -> tuple[tuple[_Node | str, ...], tuple[_Node | str, ...]]:
    return (node.ups, node.downs) if isinstance(node, _Node) and node.sign == kind else ((node,), ())


def _written(node: _Node | str) -> str:
    if isinstance(node, str):
        return node
    up, down = ("+", "-") if node.sign == "+" else ("*", "/")
    parts = [f"({_written(n)})" if isinstance(n, _Node) and node.sign == "*" else _written(n) for n in (*node.ups, *node.downs)]
    text = up.join(parts[: len(node.ups)])
    return text + "".join(down + part for part in parts[len(node.ups) :])


def said_as_json(cards: Sequence[str], faces: str, formula: str) -> str:
    """An answer as JSON, as `read` takes it."""
    return json.dumps({"cards": list(cards), "number": [points(c, faces) for c in cards], "formula": f"{formula}={TARGET}"})

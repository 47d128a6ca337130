"""math-verify without its signals, and not on what it would compute for hours. For verifiers; the judge keeps the deadline."""

from __future__ import annotations

import logging
import re
from typing import Any

from mmrl.api.errors import UserError

try:
    import math_verify
except ModuleNotFoundError as error:
    raise UserError(f'comparing formulas needs {error.name}: pip install "multimodal-rl[mathematics]"') from error

MAX_MATH = 20_000
"""Characters that math-verify is given; its patterns take quadratic time."""
COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
"""A command of LaTeX, its name as the group."""
_PYTHON = re.compile(r"(?<=[\w)}\]])\*\*|(?<=[\d)}\]])\s+\*\*")
"""A power as Python writes it. In "it is **7**" the stars are no power."""
_EXPONENT = re.compile(r"(\S)\s*\^[\s({-]*(\d+)")
_AFTER = re.compile(r"\s*[-+]?\s*(\\[A-Za-z]+\s*(?=[{\[(]))?([{\[(]|\d+|\\[A-Za-z]+|\S|\Z)")
"""What follows a `^`: a command with a group, a bracket that opens, a number, a command, a sign."""
_DIGIT = re.compile(r"\d(?:\.\d+)?")
"""A digit, with the decimals behind it as one: those make a number no larger."""
_BLANKS = re.compile(r"\s*\^")
_OPENING, _CLOSING = frozenset("({["), frozenset(")}]")
_EXP = re.compile(r"exp\W*exp|exp\s*(?:\\left)?\s*[({][^)}]*(?:exp|\^)")
_PRODUCT = re.compile(r"\)\s*(?:\\cdot|\\times|\*)?\s*(?:\\left)?\s*\(")
_FACTORIAL = re.compile(r"\d{3}[\s)}]*!|!\s*!|\^[\s({-]*\d+[\s)}]*!|(?:\d(?:[\s*+(){}]|\\cdot|\\times){0,8}){5}\d[\s)}]*!")
_CHOOSE = re.compile(r"binom\s*\{(?:[^{}]*[\^!]|(?:[^{}]{0,20}\d){4})|\d{4}\W{0,4}choose")
_SIGN = re.compile(r"[A-Za-z]")

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that its own timeouts are off: the judge has the deadline


def parse_math(text: str) -> list[Any]:
    """What math-verify finds in a text; nothing where it would take too long."""
    # a timeout of 0 is none: math-verify's own use signals
    return [] if is_too_expensive(text) else math_verify.parse(text, parsing_timeout=0)


def verify_parsed(gold: list[Any], target: list[Any]) -> bool:
    """math-verify's comparison, in the order of its arguments; nothing equals nothing."""
    return bool(gold and target and math_verify.verify(gold, target, timeout_seconds=0))


def answers_match(completion: str, answer: str) -> bool:
    """Whether math-verify finds something in both and calls it equal; whatever it can't compare is unequal, as in all the
    published code that this serves."""
    try:
        wanted = math_verify.parse(answer, parsing_timeout=0)
        return bool(wanted) and verify_parsed(parse_math(completion), wanted)
    except Exception:  # noqa: BLE001  the published rule
        return False


def is_too_expensive(text: str) -> bool:
    """Too long for math-verify, or what it would compute for minutes or hours: towers of powers, high powers of sums, factorials,
    brackets in brackets in brackets. Takes linear time."""
    if len(text) > MAX_MATH:
        return True
    text = _PYTHON.sub("^", text)
    exponents = _EXPONENT.findall(text)
    sums = [power for base, power in exponents if base in ")}"]
    letters = len(set(_SIGN.findall(COMMAND.sub(" ", text))))
    many = letters > 2
    return (
        any(len(power) > (3 if base.isdigit() else 2) for base, power in exponents)
        or sum(len(power) > 1 for _, power in exponents) > 4
        or any(len(power) > 2 or int(power) > (3 if many else 20) for power in sums)
        or sum(int(power) > 2 for power in sums) > (1 if many else 3)
        or (letters > 6 and len(_PRODUCT.findall(text)) > 2)
        or bool(_EXP.search(text))
        or (any(c in text for c in "$\\[") and bool(_FACTORIAL.search(text) or _CHOOSE.search(text)))
        or _towers(text)
        or _nested(text) > 20
    )


def _towers(text: str) -> bool:
    """A power, an exponential or a factorial in an exponent, or more than four digits, which sums and products make
    large."""
    at = text.find("^")
    while at >= 0:
        after = _AFTER.match(text, at + 1)
        if after is None:
            return False
        end = after.end()
        if after[2] in _OPENING:
            end = _closed(text, end)
            while after[1] and text[end : end + 1] == "{":  # \frac has two groups
                end = _closed(text, end + 1)
        exponent = text[at + 1 : end]
        if (
            any(much in exponent for much in ("^", "exp", "binom", "choose"))
            or "!" in exponent.replace("\\!", "")
            or len(_DIGIT.findall(exponent)) > 4
            or _BLANKS.match(text, end)
        ):
            return True
        at = text.find("^", end)
    return False


def _closed(text: str, at: int) -> int:
    """Where the group ends whose bracket opens just before `at`: after its closing bracket, or at the end of the text."""
    depth = 1
    while at < len(text) and depth:
        depth += (text[at] in _OPENING) - (text[at] in _CLOSING)
        at += 1
    return at


def _nested(text: str) -> int:
    """How much stands in more brackets than four: the grammar of LaTeX tries each of these in several ways."""
    depth = deep = 0
    for sign in text:
        depth += (sign in _OPENING) - (sign in _CLOSING)
        depth = max(depth, 0)
        deep += max(depth - 4, 0) if sign in _OPENING else 0
    return deep

"""math-verify for verifiers: without its signal-based timeouts (the judge has its own), and not for texts that take too long."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.verifiers.parse import thought

try:
    import math_verify
    from math_verify import parser
except ModuleNotFoundError as error:
    raise UserError(f'comparing formulas needs {error.name}: pip install "multimodal-rl[mathematics]"') from error

MAX_MATH = 20_000
"""Largest number of characters that math-verify looks through, since its patterns take quadratic time."""
COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
"""A LaTeX command; the group is its name."""
_PYTHON = re.compile(r"(?:(?<=[\w)}\]])|(?<=[\d)}\]])\s+)\*\*(?=\s*[-+(\d.])")
"""Python's power operator, which has a number or a bracket behind it. In "it is **10^3** in all" the stars are no power."""
_EXPONENT = re.compile(r"(\S)\s*\^[\s({-]*(\d+)")
_AFTER = re.compile(r"\s*[-+]?\s*(\\[A-Za-z]+\s*(?=[{\[(]))?([{\[(]|\d+|\\[A-Za-z]+|\S|\Z)")
"""The text after a `^`: a command with a group, an opening bracket, a number, a command, or another character."""
_DIGIT = re.compile(r"\d(?:\.\d+)?")
"""A digit with its decimals, which count as one digit because they make a number no larger."""
_BLANKS = re.compile(r"\s*\^")
_OPENING, _CLOSING = frozenset("({["), frozenset(")}]")
_EXP = re.compile(r"exp\W*exp|exp\s*(?:\\left)?\s*[({][^)}]*(?:exp|\^)")
_PRODUCT = re.compile(r"\)\s*(?:\\cdot|\\times|\*)?\s*(?:\\left)?\s*\(")
_FACTORIAL = re.compile(r"\d{3}[\s)}]*!|!\s*!|\^[\s({-]*\d+[\s)}]*!|(?:\d(?:[\s*+(){}]|\\cdot|\\times){0,8}){5}\d[\s)}]*!")
_GAMMA = re.compile(r"\\[Gg]amma\s*(?:\\left)?\s*[({][^)}]{0,40}?(?:\d{4}|\d[\s)}]*\^|\d\s*(?:\*|\\cdot|\\times)|!|\\[Gg]amma)")
"""The gamma function of a large number: a factorial by another name."""
_ROUNDED = re.compile(r"(?:floor|ceil)\s*!")
_CHOOSE = re.compile(r"binom\s*\{(?:[^{}]*[\^!]|(?:[^{}]{0,20}\d){4})|\d{4}\W{0,4}choose")
_SIGN = re.compile(r"[A-Za-z]")
_DELIMITER = re.compile(r"\$|\\[()\[\]]|\\boxed")
"""Where a formula may begin or end."""
_TERM = re.compile(r"[-+=|,]")
MAX_TERMS = 500
"""Largest number of terms or elements of a formula: parsing takes milliseconds for each."""
_PART = re.compile(r"(\\boxed\s*\{|(?<!\\)(?:\$\$?|\\[()\[\]])|(?<=\s)\[)")
"""The delimiters that math-verify reads formulas between."""
_FACTOR = re.compile(r"\\text\s*\{[^{}]*\}|\\?[A-Za-z]|\d+")
MAX_FACTORS = 400
"""Largest number of letters, commands and numbers of a formula, a text in it being one: parsing takes milliseconds for each."""
MAX_BOXES = 100
"""Largest number of boxes in a text: all of them are read as one set."""
_BOX = re.compile(r"\\(?:boxed|fbox)")
NEAR = 70
"""With fewer characters between them, boxes are one answer."""
_INTEGRAL = re.compile(r"\\i+nt(?![A-Za-z])")
MAX_INTEGRALS = 3
"""Largest number of integrals in a formula: they are computed, one within the other."""
MAX_NESTED = 20
"""Largest measure of nested brackets, see `_nested`."""
MAX_TRIED = 100
"""Largest number of formulas that are tried until one can be read: each may take a tenth of a second."""
_LONG_NUMBER = re.compile(r"(?<!\d)\d{500}")
_UNION = re.compile(r"\\c[au]p(?![A-Za-z])")
MAX_UNIONS = 16
"""Largest number of unions and intersections in a text: comparing them takes cubic time."""

_FORMULAS = [math_verify.LatexExtractionConfig(), math_verify.ExprExtractionConfig()]
_LETTERS = [math_verify.StringExtractionConfig(), *_FORMULAS]
_NO_TIMEOUT = {"timeout_seconds": 0} if "timeout_seconds" in inspect.signature(parser.extract_match).parameters else {}
"""math-verify's timeouts, which use signals, are off; version 0.5.2 has one here."""

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that its own timeouts are off: the judge has the deadline


def parse_math(text: str, letters: bool = False) -> list[Any]:
    """The expression that math-verify's `parse` finds in a text, and its words; an empty list if it would have to read one that
    takes too long. Of a text that is too long for its patterns what stands behind the thinking is read, at most the last
    `MAX_MATH` characters from the beginning of a line. letters: also look for the letters of options, A to D."""
    text = text if _is_fit(text) else _ending(text)
    if not _is_fit(text):
        return []
    try:
        return _found(text, _LETTERS if letters else _FORMULAS)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  `parse` does the same
        return []


def _is_fit(text: str) -> bool:
    """Whether math-verify's patterns may look through a text: they take seconds where brackets don't close."""
    return len(text) <= MAX_MATH and _nested(text) <= MAX_NESTED


def _ending(text: str) -> str:
    """What stands behind the thinking; of more than `MAX_MATH` characters the last lines, as a dollar in the middle of a line may
    open a formula or close it."""
    answer = thought(text)[1]
    return answer if len(answer) <= MAX_MATH else answer[-MAX_MATH:].partition("\n")[2]


def _found(text: str, kinds: list[Any]) -> list[Any]:
    """What `parse` finds. It looks by the priority of its patterns, and for each from the end of the text to the first match that
    it can read, so that what stands before an answer isn't read, whatever time that would take."""
    patterns = [(priority, pattern, kind) for known, kind in parser.get_extraction_regexes(kinds) for pattern, priority in known]
    words, tried = "", 0
    for _, same in groupby(sorted(patterns, key=itemgetter(0)), key=itemgetter(0)):
        matches = [(match, kind) for _, pattern, kind in same for match in pattern.finditer(text)]
        for match, kind in sorted(matches, key=lambda one: (one[0].end(), -one[0].start()), reverse=True):
            tried += 1
            if tried > MAX_TRIED or is_too_expensive(_read_of(match)):
                return []
            value, said = parser.extract_match(match, kind, **_NO_TIMEOUT)
            words = words or said
            if value is not None:
                return [value, words] if words else [value]
    return [words] if words else []


def _read_of(match: re.Match[str]) -> str:
    """What of a match is read as formulas: an expression; the last boxes of what begins with one; else all that follows the first
    delimiter, without the words before it."""
    if expression := match.groupdict().get("expr"):
        return expression
    boxes = match.groupdict().get("first_latexBoxed")
    if boxes:
        return _last_boxes(boxes)
    bracket = match.groupdict().get("first_latexInlineBracket")
    formula = None if bracket else _DELIMITER.search(match[0])
    return match[0][formula.start() :] if formula else f"${match[0]}"


def _last_boxes(text: str) -> str:
    """The text from the last box on, or from the first of those that math-verify reads with it: fewer than `NEAR` characters are
    between two of them."""
    starts = [box.start() for box in _BOX.finditer(text)]
    first = starts.pop() if starts else 0
    while starts and first - _closed(text, text.find("{", starts[-1]) + 1) < NEAR:
        first = starts.pop()
    return text[first:]


def verify_parsed(gold: list[Any], target: list[Any]) -> bool:
    """math-verify's comparison, with its order of arguments; an empty list equals nothing."""
    return bool(gold and target and math_verify.verify(gold, target, timeout_seconds=0))


def unequal_on_error(compare: Callable[..., bool]) -> Callable[..., bool]:
    """A comparison by math-verify that is False where it raises: texts that it can't compare are unequal, as in the published
    systems that use it. A MemoryError is raised: a judge's limit is no answer."""

    @functools.wraps(compare)
    def compared(*args: Any) -> bool:
        try:
            return compare(*args)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  the published systems do the same
            return False

    return compared


@unequal_on_error
def answers_match(completion: str, answer: str) -> bool:
    """Whether math-verify parses both texts and finds them equal; see `unequal_on_error`."""
    wanted = math_verify.parse(answer, parsing_timeout=0)
    return bool(wanted) and verify_parsed(parse_math(completion), wanted)


def is_too_expensive(text: str) -> bool:
    """Whether math-verify would take minutes or hours for a text: texts longer than `MAX_MATH`, towers of powers, high powers of
    sums, factorials, sums, products and sets of hundreds of terms, hundreds of boxes or digits, many unions or integrals, deeply
    nested brackets. The check takes linear time."""
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
        or (any(c in text for c in "$\\[") and any(p.search(text) for p in (_FACTORIAL, _GAMMA, _ROUNDED, _CHOOSE)))
        or any(len(_TERM.findall(formula)) > MAX_TERMS for formula in _DELIMITER.split(text)[1:])
        or any(
            len(_FACTOR.findall(formula)) > MAX_FACTORS or len(_INTEGRAL.findall(formula)) > MAX_INTEGRALS
            for formula in _formulas(text)
        )
        or text.count("\\boxed") > MAX_BOXES
        or bool(_LONG_NUMBER.search(text))
        or len(_UNION.findall(text)) > MAX_UNIONS
        or _towers(text)
        or _nested(text) > MAX_NESTED
    )


def _formulas(text: str) -> Iterator[str]:
    """What math-verify may read as formulas, up to delimiters in them: boxes, and what stands between dollars or brackets. A
    dollar behind a digit opens none, and one formula between dollars has no line break."""
    before, *parts = _PART.split(text)
    between = False  # dollars
    for place, (sign, part) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        closed = 2 * place + 2 < len(parts)
        if sign[0] == "$":
            between = not between and not before[-1:].isdigit() and closed and not (sign == "$" and "\n" in part)
        before = part
        if sign[0] == "[":
            inside, bracket, _ = part.partition("]")
            yield inside if bracket and "\n" not in inside else ""
        elif sign.startswith("\\b"):
            yield part if between else part[: _closed(part, 0)]
        elif between or (closed and sign in ("\\(", "\\[")):
            yield part


def _towers(text: str) -> bool:
    """Whether an exponent holds a power, an exponential, a factorial, or more than four digits, from which sums and products can
    make large numbers."""
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
    """The end of the group whose bracket opens just before `at`: after its closing bracket, or the end of the text."""
    depth = 1
    while at < len(text) and depth:
        depth += (text[at] in _OPENING) - (text[at] in _CLOSING)
        at += 1
    return at


def _nested(text: str) -> int:
    """A measure of brackets nested more than four deep: the LaTeX parser tries each of them in several ways."""
    depth = deep = 0
    for sign in text:
        depth += (sign in _OPENING) - (sign in _CLOSING)
        depth = max(depth, 0)
        deep += max(depth - 4, 0) if sign in _OPENING else 0
    return deep

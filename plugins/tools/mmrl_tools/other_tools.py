"""Tools that give text back: read text on a picture, compute, run Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmrl_tools.pictures import corners_of
from mmrl_tools.sandbox import run_program
from mmrl_tools.tool import Refused, Result, Tool, Workspace

FORMULA = 200
"""Maximum of characters of a formula."""
LARGEST = 1e100
"""A formula whose value, or that of a part, is larger has none."""
PROGRAM = 8_000
"""Maximum of characters of a program."""
PLACES = 20
"""A formula can round to so many decimal places, or powers of ten."""
WORDS = 100
"""Maximum of texts that are read at once."""
TWO: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _round(value: float, places: float | None = None) -> float:
    if places is None:
        return round(value)
    if not abs(places) <= PLACES or places != int(places):
        raise Refused(f"round takes a whole number of places from -{PLACES} to {PLACES}")
    return round(float(value), int(places))  # of an integer Python computes 10**-places first


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "sin", "cos", "tan", "exp", "log", "log10", "floor", "ceil")},
    **{"abs": abs, "min": min, "max": max, "round": _round},
}
CONSTANTS = {"pi": math.pi, "e": math.e}


def text_tools(box: Mapping[str, Any]) -> list[Tool]:
    """box: the JSON schema of a box in the policy's coordinate format."""
    return [
        Tool(
            name="read_text",
            description="Read the text on the first picture, in a box or everywhere.",
            properties={"box": box},
            run=read_text,
        ),
        Tool(
            name="compute",
            description=f"The value of a formula, with + - * / // % ** and {', '.join(FUNCTIONS)}, pi, e.",
            properties={"formula": {"type": "string", "maxLength": FORMULA, "description": "Such as (3 + 4) * sqrt(2)."}},
            required=("formula",),
            run=lambda arguments, workspace: Result(compute(arguments["formula"])),
        ),
        Tool(
            name="python",
            description="Run a Python program without files and network, with the mathematics of the standard library. "
            "You get what it prints.",
            properties={"code": {"type": "string", "maxLength": PROGRAM, "description": "The program."}},
            required=("code",),
            run=lambda arguments, workspace: Result(run_program(arguments["code"])),
            waits=True,
        ),
    ]


def read_text(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """The words whose middle is in the box, line by line as the data give them."""
    if not workspace.words:
        raise Refused("there is no text to read on the picture")
    first = workspace.picture(1)
    wide, high = first.image.size
    x1, y1, x2, y2 = corners_of(arguments["box"], first, workspace.processing) if "box" in arguments else (0, 0, wide, high)
    inside = [text for text, box in workspace.words if x1 <= _middle(box, 0) <= x2 and y1 <= _middle(box, 1) <= y2]
    if not inside:
        raise Refused("there is no text in the box")
    return Result(
        " ".join(inside[:WORDS]), looked=(first.place.part((x1 / wide, y1 / high, x2 / wide, y2 / high)),) if first.place else ()
    )


def _middle(box: Sequence[float], axis: int) -> float:
    return (box[axis] + box[axis + 2]) / 2


def compute(formula: str) -> str:
    """The value of a formula. Raises Refused for text that is none, and for values that are too large or aren't real."""
    if len(formula) > FORMULA:
        raise Refused(f"a formula has at most {FORMULA} characters")
    try:
        value = _value(ast.parse(formula.strip().replace("^", "**"), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise Refused("this is no formula") from None
    except ZeroDivisionError:
        raise Refused("the formula divides by zero") from None
    except (ArithmeticError, ValueError, TypeError) as error:
        raise Refused(f"the formula has no value: {error}"[:100]) from None
    if isinstance(value, float) and value == int(value) and abs(value) < 2**53:
        value = int(value)
    return str(value)


def _value(node: ast.expr) -> Any:
    """The value of a part of a formula, a number."""
    found: Any
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        found = node.value
    elif isinstance(node, ast.Name) and node.id in CONSTANTS:
        found = CONSTANTS[node.id]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        found = -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        found = _power(_value(node.left), _value(node.right))
    elif isinstance(node, ast.BinOp) and type(node.op) in TWO:
        found = TWO[type(node.op)](_value(node.left), _value(node.right))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords:
        found = FUNCTIONS[node.func.id](*(_value(one) for one in node.args))
    else:
        raise Refused("a formula has numbers, + - * / // % **, brackets and the functions that are named")
    if isinstance(found, complex) or not abs(found) <= LARGEST:
        raise Refused("the formula has no value, or one that is too large")
    return found


def _power(base: float, exponent: float) -> float:
    if abs(base) > 1 and abs(exponent) * math.log10(abs(base)) > math.log10(LARGEST):  # before it takes forever
        raise Refused("the formula has no value, or one that is too large")
    return base**exponent

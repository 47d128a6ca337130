"""Programs of actions, as WebWISE's policies write them (Tao et al., NAACL Findings 2024, arXiv 2310.16042): a few calls
on the listed elements, such as `click(3)`, and loops over numbers or texts.

A program is parsed and never evaluated: it consists of calls by name with literals, and of `for` loops, whose passes are counted
before anything is done. An element is looked for again before each call, since the calls before it may have changed the page.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrl.api.simulators.gui import DIRECTIONS, Action, Element
from mmrl_gui.actions import AS_IT_STANDS, POINTED, made
from mmrl_gui.coordinates import Numbers
from mmrl_gui.geometry import is_number, middle
from mmrl_gui.listing import number_of
from mmrl_gui.names import NoAction, kind_of
from mmrl_gui.reading import said

PROGRAM = "program"
"""The style of an action that is a program."""
MOST = 20
"""Maximum of actions of a program."""
LONGEST = 4000
"""Maximum of characters of a program."""
DEEPEST = 2
"""Maximum of loops within each other."""
warnings.filterwarnings("ignore", "invalid decimal literal", SyntaxWarning)  # `1or 2`, which is refused anyway
_FENCED = re.compile(r"```[A-Za-z]*\n(.*?)```", re.DOTALL)
_ESCAPES = frozenset("\\'\"ntr\n")
"""What may stand after a backslash; of anything else Python warns, or means a character by its code."""
_TOLD = ("type", "key", "open", "answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An action of a completion."""

    action: Action
    line: int = 0
    """The line of the program, from 1; 0 if the completion is no program."""
    at: Element | None = None
    """The element whose place is the action's; None if it has none, or says it in numbers."""
    to: Element | None = None
    """The element at which a drag ends; None likewise."""


def read_program(text: str, numbers: Numbers = AS_IT_STANDS, elements: Sequence[Element] = ()) -> list[Call]:
    """The calls of a completion that is a program, or has it in a fence, in the order in which they are carried out; positions in
    pixels. At least one, at most `MOST`.

    numbers: format of its positions. elements: those that `click(3)` refers to, from 1. Raises NoAction.
    """
    answer, why = said(text)
    if answer is None:
        raise NoAction(why)
    fenced = _FENCED.findall(answer)
    if len(fenced) > 1:
        raise NoAction(f"there are {len(fenced)} programs, and one is wanted")
    source = (fenced[0] if fenced else answer).strip()
    if len(source) > LONGEST:
        raise NoAction(f"the program is longer than {LONGEST:,} characters")
    if odd := next((m[1] for m in re.finditer(r"\\(.?)", source, re.DOTALL) if m[1] not in _ESCAPES), None):
        raise NoAction(f"\\{odd} is no escape: write a backslash as \\\\")
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise NoAction(f"line {error.lineno or 1}: this is no program: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):  # a null byte, or too many brackets
        raise NoAction("this is no program") from None
    found: list[Call] = []
    for node, names in _calls(tree.body, {}, 0):
        found += _read_call(node, names, numbers, elements)
        if len(found) > MOST:
            raise NoAction(f"line {node.lineno}: the program has more than {MOST} actions")
    if not found:
        raise NoAction("the program calls nothing")
    return found


# -- statements -------------------------------------------------------------------------------------------------------------


def _calls(body: Sequence[ast.stmt], names: Mapping[str, Any], depth: int) -> Iterator[tuple[ast.Call, Mapping[str, Any]]]:
    """(call, values of the loops' variables) of some statements, each pass of a loop by itself."""
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node.value, names
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name) and not node.orelse:
            if depth == DEEPEST:
                raise NoAction(f"line {node.lineno}: there are more than {DEEPEST} loops within each other")
            for value in _passes(node.iter, names):
                yield from _calls(node.body, {**names, node.target.id: value}, depth + 1)
        else:
            raise NoAction(f"line {node.lineno}: only calls and loops `for name in ...:` are allowed")


def _passes(node: ast.expr, names: Mapping[str, Any]) -> Sequence[Any]:
    """What a loop goes over: a range or a list, of at most `MOST`."""
    if isinstance(node, ast.List | ast.Tuple):
        passes: Sequence[Any] = [_value(one, names) for one in node.elts]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and not node.keywords:
        bounds = [value for one in node.args if isinstance(value := _value(one, names), int) and abs(value) < 10**6]
        if not 1 <= len(bounds) == len(node.args) <= 3 or bounds[2:] == [0]:
            raise NoAction(f"line {node.lineno}: range needs one to three whole numbers")
        passes = range(*bounds)
    else:
        raise NoAction(f"line {node.lineno}: a loop goes over range(...) or a list")
    if len(passes) > MOST:
        raise NoAction(f"line {node.lineno}: a loop has more than {MOST} passes")
    return passes


def _value(node: ast.expr, names: Mapping[str, Any]) -> int | float | str:
    """A number, a text, or the value of a loop's variable."""
    if isinstance(node, ast.Name) and node.id in names:
        value: int | float | str = names[node.id]
        return value
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    literal = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    if isinstance(literal, ast.Constant) and (is_number(literal.value) or (isinstance(literal.value, str) and not negative)):
        return -literal.value if negative else literal.value  # type: ignore[operator, return-value]  # a number or a text
    if isinstance(node, ast.Name):
        raise NoAction(f"line {node.lineno}: {node.id[:40]} has no value: only variables of loops have one")
    raise NoAction(f"line {node.lineno}: only numbers, texts and variables of loops are allowed here")


# -- calls ------------------------------------------------------------------------------------------------------------------


def _read_call(node: ast.Call, names: Mapping[str, Any], numbers: Numbers, elements: Sequence[Element]) -> list[Call]:
    """The actions of a call: one, or two if it clicks on a field and types into it."""
    if not isinstance(node.func, ast.Name):
        raise NoAction(f"line {node.lineno}: functions are called by name")
    name = node.func.id
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise NoAction(f"line {node.lineno}: {name[:40]} takes arguments by position")
    values = [_value(argument, names) for argument in node.args]
    try:
        kind = kind_of(name)
        if kind == "type" and len(values) == 2:
            return [
                _call("click", "click", values[:1], node.lineno, numbers, elements),
                _call(name, kind, values[1:], node.lineno, numbers, elements),
            ]
        return [_call(name, kind, values, node.lineno, numbers, elements)]
    except NoAction as why:
        raise NoAction(f"line {node.lineno}: {why}") from None


def _call(name: str, kind: str, values: Sequence[Any], line: int, numbers: Numbers, elements: Sequence[Element]) -> Call:
    """One action. Raises NoAction if the arguments don't belong to it."""
    fields: dict[str, Any] = {}
    at = to = None
    if kind == "scroll" and values and isinstance(values[-1], str):
        fields["direction"], values = values[-1], values[:-1]
    if kind in _TOLD and len(values) == 1:
        fields["text"] = str(values[0])
    elif kind in (*POINTED, "scroll") and len(values) == 1:
        at = _named(values[0], elements)
        fields["at"] = list(at.click_point or middle(at.box))
    elif kind == "drag" and len(values) == 2:
        at, to = (_named(value, elements) for value in values)
        fields |= {"at": list(at.click_point or middle(at.box)), "to": list(to.click_point or middle(to.box))}
    elif kind in (*POINTED, "scroll", "drag") and len(values) == (4 if kind == "drag" else 2) and all(map(is_number, values)):
        fields |= {"at": values[:2], **({"to": values[2:]} if kind == "drag" else {})}
    elif values:
        raise NoAction(f"{name}({', '.join(map(repr, values))[:60]}) is no call of it")
    return Call(action=made(name, fields, AS_IT_STANDS if at else numbers, ()), line=line, at=at, to=to)


def _named(number: Any, elements: Sequence[Element]) -> Element:
    if not isinstance(number, int) or not 1 <= number <= len(elements):
        raise NoAction(f"there is no element {number!r:.20}: there are {len(elements)}")
    return elements[number - 1]


# -- carrying out -----------------------------------------------------------------------------------------------------------


def placed(call: Call, before: Sequence[Element], now: Sequence[Element]) -> Action | None:
    """A call's action with the places that its elements have now; None if one of them is gone.

    before: all elements of the screen for which the program was written. now: those of the present one."""
    places = {}
    for name, element in (("at", call.at), ("to", call.to)):
        if element is not None:
            there = found_again(element, before, now)
            if there is None:
                return None
            places[name] = there.click_point or middle(there.box)
    return replace(call.action, at=places.get("at", call.action.at), to=places.get("to", call.action.to))


def found_again(element: Element, before: Sequence[Element], now: Sequence[Element]) -> Element | None:
    """The same element of another observation: of the same role and text, and of several such ones in the same place of their
    order. None if there are now more or fewer of them, since it is then unknown which one it is."""

    def alike(elements: Sequence[Element]) -> list[Element]:
        return [one for one in elements if (one.role, one.text, one.icon) == (element.role, element.text, element.icon)]

    then, there = alike(before), alike(now)
    if len(then) != len(there):
        return None
    return next((there[n] for n, one in enumerate(then) if one is element), None)


# -- writing ----------------------------------------------------------------------------------------------------------------


def write_program(action: Action, numbers: Numbers = AS_IT_STANDS, elements: Sequence[Element] = ()) -> str:
    """An action as a program of one call; the inverse of `read_program`. elements: those that may be named by number; without the
    one that it is meant for, its place is written in numbers."""
    number = number_of(action, elements)
    arguments: list[Any] = []
    if action.at is not None:
        arguments += [number] if number else numbers.written(action.at)
    arguments += numbers.written(action.to) if action.to is not None else ()
    arguments += [action.direction] if action.direction else []
    arguments += [action.text] if action.text or action.kind in _TOLD else []
    written = (_literal(one) if isinstance(one, str) else f"{one:.12g}" for one in arguments)
    return f"{action.kind.replace('-', '_')}({', '.join(written)})"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else repr(text)


def program_language(kinds: Sequence[str], numbers: Numbers, elements: bool, places: bool) -> str:
    """The calls of a program, for a prompt. kinds: of `mmrl.api.simulators.gui.ACTION_KINDS`, in order. elements: whether there
    is a list whose numbers name elements. places: whether places may be said in numbers, too."""
    at, to = ", ".join(numbers.order.swapped(("x", "y"))), ", ".join(numbers.order.swapped(("to_x", "to_y")))
    forms = dict.fromkeys(kinds, "()") | dict.fromkeys(POINTED, f"({at})") | {"drag": f"({at}, {to})"}
    forms |= {"type": '("text")', "key": '("key")', "open": '("app")', "answer": '("text")'}
    forms |= {"scroll": f"({' or '.join(json.dumps(one) for one in DIRECTIONS)})"}
    if elements:
        forms |= dict.fromkeys(POINTED, "(n)") | {"type": '(n, "text")', "drag": "(n, m)"}
    known = [f"{kind.replace('-', '_')}{forms[kind]}" for kind in kinds]
    last = ["Loops may be written as `for n in [2, 5]:` or `for n in range(2, 6):`."]
    if elements:
        last.append("An element is named by its number, such as click(3).")
    if places and {*POINTED, "drag"} & {*kinds}:
        last.append(f"Places, {at}, are in {numbers.says()}.")
    how = f"Answer with a short program, one call a line and at most {MOST}, of"
    return "\n".join([how, *known, " ".join(last)])


__all__ = ["PROGRAM", "Call", "found_again", "placed", "program_language", "read_program", "write_program"]

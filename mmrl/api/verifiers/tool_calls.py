"""Calls of tools in a completion, as model families write them: read and written.

- `hermes` (Qwen2.5, Qwen3, Hermes): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
- `qwen-xml` (Qwen3-Coder, Qwen3.5): `<tool_call><function=NAME><parameter=P>value</parameter></function></tool_call>`
- `json`: a fenced block or an object with a name and arguments, the last thing that is written, and the only braces

A completion is hostile: all functions take linear time and read at most `LONGEST` characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mmrl.api.tasks.quoting import quoted
from mmrl.api.verifiers.parse import find_json, only_json

FORMS = ("hermes", "qwen-xml", "json")
LONGEST = 50_000
"""Maximum of characters of a turn in which calls are read."""
MOST = 16
"""Maximum of calls in a turn that are read."""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAGS = (OPEN, CLOSE, "<function=", "</function>", "</parameter>")
"""What a value can't contain in the form `qwen-xml`."""
NAMES = ("name", "function", "tool")
"""Keys of an object under which the name of a tool may stand, in the form `json`."""
_FUNCTION = re.compile(r"\s*<function=([\w.-]{1,64})>(.*)</function>\s*", re.DOTALL)
_NAME = re.compile(r"[\w.-]{1,64}")
_OWN = ("tool_call", "function", "parameter")
"""Tags of calls, which stay in what is quoted."""


class CallError(Exception):
    """A call that can't be read, or can't be carried out. The message is for the policy."""


class Call(NamedTuple):
    name: str
    arguments: Mapping[str, Any]


def read(text: str, form: str) -> list[Call]:
    """The calls in a turn, in order; none if it has none. Raises CallError, with a message for the policy, for a call that can't
    be read, and for more than `MOST`."""
    if form == "json":
        return _read_json(text)
    if OPEN not in text and CLOSE not in text:
        return []
    if len(text) > LONGEST:
        raise CallError(f"a turn with a call must have at most {LONGEST:,} characters")
    pieces = text.split(OPEN)
    if CLOSE in pieces[0]:
        raise CallError(f"a {CLOSE} has no {OPEN} before it")
    if len(pieces) > MOST + 1:
        raise CallError(f"a turn may have at most {MOST} calls, not {len(pieces) - 1}")
    found = []
    for piece in pieces[1:]:
        inside, end, after = piece.partition(CLOSE)
        if not end:
            raise CallError(f"a {OPEN} is not closed by {CLOSE} before the next one, or the end")
        if CLOSE in after:
            raise CallError(f"a {CLOSE} has no {OPEN} before it")
        found.append(_hermes(inside) if form == "hermes" else _xml(inside))
    return found


def write(call: Call, form: str) -> str:
    """A call as it is written in a form. Raises ValueError for text that the form can't hold."""
    if form == "qwen-xml":
        parts = []
        for name, value in call.arguments.items():
            text = value if isinstance(value, str) else json.dumps(value)
            if any(tag in text for tag in TAGS) or isinstance(_plain(text), str) != isinstance(value, str):
                raise ValueError(f"{name} = {text!r:.60} can't be written in the form qwen-xml")
            parts.append(f"<parameter={name}>\n{text}\n</parameter>\n")
        return f"{OPEN}\n<function={call.name}>\n{''.join(parts)}</function>\n{CLOSE}"
    text = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
    if any(sign in text for sign in (OPEN, CLOSE, "```")):  # within a text of JSON other signs mean the same
        text = text.replace("<", "\\u003c").replace("`", "\\u0060")
    return f"```json\n{text}\n```" if form == "json" else f"{OPEN}\n{text}\n{CLOSE}"


def instructions(schemas: Sequence[Mapping[str, Any]], form: str) -> str:
    """The schemas of tools and how they are called, for a message: what a chat template would say."""
    lines = "\n".join(json.dumps(schema) for schema in schemas)
    return f"You may call these functions before you answer:\n{lines}\n{_how(form)}"


def _how(form: str) -> str:
    example = {"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}
    if form == "json":
        return f"To call one, end your turn with a block such as\n```json\n{json.dumps(example)}\n```"
    return f"To call one, write\n{write(Call('NAME', {'ARGUMENT': 'VALUE'}), form)}"


def reply_parts(text: str, images: Sequence[Any], form: str) -> list[dict[str, Any]]:
    """The parts of the message with the results of calls: pictures, then text, within the form's tags. The text may repeat what
    the policy wrote: signs of pictures and of turns are broken by a blank, as a processor would take them for such."""
    text = quoted(text, kept=_OWN)
    shown = [{"type": "image", "image": image} for image in images]
    if form == "json":
        return [*shown, {"type": "text", "text": text}]
    return [{"type": "text", "text": "<tool_response>\n"}, *shown, {"type": "text", "text": f"{text}\n</tool_response>"}]


def _hermes(inside: str) -> Call:
    value = _object(inside)
    if not isinstance(value, dict):
        raise CallError('a call must be one JSON object, {"name": ..., "arguments": {...}}')
    return _call(value.get("name"), value.get("arguments", {}))


def _xml(inside: str) -> Call:
    match = _FUNCTION.fullmatch(inside)
    if not match or "<function=" in match[2]:
        raise CallError("a call must hold one <function=NAME>...</function>")
    arguments: dict[str, Any] = {}
    *pieces, rest = match[2].split("</parameter>")
    if rest.strip():
        raise CallError("parameters must be written <parameter=NAME>value</parameter>")
    for piece in pieces:
        piece = piece.lstrip()
        head, sign, value = piece.removeprefix("<parameter=").partition(">")
        if not sign or not piece.startswith("<parameter=") or not _NAME.fullmatch(head):
            raise CallError("parameters must be written <parameter=NAME>value</parameter>")
        if head in arguments:
            raise CallError(f"the parameter {head} is given twice")
        arguments[head] = _plain(value.removeprefix("\n").removesuffix("\n"))
    return _call(match[1], arguments)


def _plain(text: str) -> Any:
    """A value without a type: a number, list or object of JSON, or else the text itself."""
    value = _value(text)
    return text if value is None or isinstance(value, str | bool) else value


def _read_json(text: str) -> list[Call]:
    if "{" not in text or not any(f'"{name}"' in text for name in NAMES):
        return []
    if len(text) > LONGEST:
        raise CallError(f"a turn with a call must have at most {LONGEST:,} characters")
    value = only_json(text, fence=True)
    if value is None:  # the text before it may have square brackets
        value = only_json(text[text.index("{") :])
    if value is None:
        raise CallError('a turn may hold one JSON object, {"name": ..., "arguments": {...}}')
    if not isinstance(value, dict) or not (named := [name for name in NAMES if name in value]):
        return []
    rest = {name: one for name, one in value.items() if name != named[0]}
    return [_call(value[named[0]], rest.get("arguments", rest))]


def _call(name: Any, arguments: Any) -> Call:
    if isinstance(arguments, str):  # some families write the object as a text
        arguments = _object(arguments)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CallError("a call must have a name")
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise CallError("the arguments of a call must be a JSON object")
    return Call(name, arguments)


def _object(text: str) -> Any:
    """The JSON object that a text is; None for any other text."""
    text = text.strip()
    return _value(text) if text.startswith("{") and text.endswith("}") else None


def _value(text: str) -> Any:
    """The JSON value that a text is, within the limits of `find_json`; None for any other text."""
    try:
        whole = json.loads(text)
        found = find_json(f"[{text}]", list)
    except (ValueError, RecursionError):
        return None
    return found[0] if found == [whole] else None

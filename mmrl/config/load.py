"""Load a run file: TOML -> typed config. Unknown keys are refused with a suggestion; `--set a.b=c` overrides one value.

The keys are in `mmrl.config.sections`. This module imports nothing heavy, so a run file can be checked on a laptop.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mmrl.api.errors import UserError, check_path
from mmrl.api.settings import parse_value
from mmrl.config.foreign_names import names_here
from mmrl.config.sections import STAGES, RunConfig
from mmrl.config.unknown import OPTIONS, OptionNames, describe_unknown_key, no_names


def load_config(path: str | Path, overrides: Sequence[str] = (), option_names: OptionNames = no_names) -> RunConfig:
    """Read and check a run file.

    overrides: `a.b=value` strings; list items are addressed by index (`stages.0.steps=5`; -1 is the last), values are TOML or
    plain text. option_names: tells the options of a task or a rule, for the error about a key that is none of its section.

    Raises UserError with the file, the key and what to do.
    """
    return parse_config(read_toml(path), overrides, where=str(path), option_names=option_names)


MAX_FILE = 2**20
"""Bytes of a run file; the longest of ours has 3,000. A megabyte of TOML takes about a second to parse."""


def read_toml(path: str | Path) -> dict[str, Any]:
    path = Path(path)
    try:
        about = os.stat(path)
        if stat.S_ISDIR(about.st_mode):
            raise UserError(f"{path} is a folder: give the run file, for example {path / 'config.toml'}")
        if not stat.S_ISREG(about.st_mode):  # reading a pipe or a device may never end
            raise UserError(f"run file {path} is a pipe or a device: save the text in a file")
        if about.st_size > MAX_FILE:
            raise UserError(f"run file {path} has {about.st_size:,} bytes, at most {MAX_FILE:,} are read: give a run file")
        text = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"run file {path} does not exist: {check_path(path)}, or write one (docs/run-files.md)") from None
    except OSError as err:
        raise UserError(f"run file {path} can't be read: {err.strerror}: check its path and permissions") from None
    except ValueError:  # a null byte or half a surrogate pair; each Python says so in words of its own
        raise UserError(f"run file {path} can't be read: its name has a character that no path can have: check it") from None
    if not text.strip():
        raise UserError(f"run file {path} is empty: write one (docs/run-files.md)")
    try:
        return tomllib.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as err:
        raise UserError(f"run file {path} is not UTF-8 text (byte {err.start}): save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as err:
        raise UserError(f"run file {path} is not valid TOML: {err}: correct that line") from None


def parse_config(
    data: Mapping[str, Any], overrides: Sequence[str] = (), where: str = "run file", option_names: OptionNames = no_names
) -> RunConfig:
    """Check plain data against the schema; see `load_config`."""
    tree = None
    try:
        tree = _copy(data)
        for text in overrides:
            _override(tree, text)
        return RunConfig.model_validate(tree)
    except RecursionError:
        raise UserError(f"{where} has tables within tables beyond any depth: shorten its dotted keys") from None
    except ValidationError as err:
        raise UserError(f"{where}: {describe_validation_error(err, tree, option_names)}") from None


def _copy(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {k: _copy(v) for k, v in tree.items()}
    return [_copy(v) for v in tree] if isinstance(tree, list) else tree


def _override(tree: dict[str, Any], text: str) -> None:
    (*parents, last), value = _key_and_value(text)
    node: Any = tree
    for part in parents:
        node = node[_index(node, part, text)] if isinstance(node, list) else node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise UserError(f"--set {text!r}: {part!r} is a single value, it has no keys inside: drop what follows it")
    node[_index(node, last, text) if isinstance(node, list) else last] = parse_value(value)


_PART = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^.=]*?)\s*([.=])""")
"""A part of a dotted key, and what follows it. Parts may be quoted as in TOML; ids with a slash needn't be."""


def _key_and_value(text: str) -> tuple[list[str], str]:
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # bytes of an argument that are no text
        raise UserError(f"--set {text!r} is no UTF-8: write it in that encoding")
    parts, end, sign = list[str](), 0, "."
    while sign == "." and (found := _PART.match(text, end)):
        part, sign = found.groups()
        end = found.end()
        parts.append(str(parse_value(part)) if part[:1] in ("'", '"') else part)
    if sign == "=" and any(parts):
        return parts, text[end:]
    raise UserError(f"--set {text!r} has no {'key' if sign == '=' else 'value'}: write --set key.path=value")


def _index(node: list[Any], part: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", part) or not -len(node) <= int(part) < len(node):
        known = f"use 0 to {len(node) - 1}, or -1 for the last" if node else "give the list in the run file first"
        raise UserError(f"--set {text!r}: {part!r} is not an item of a list of {len(node)}: {known}")
    return int(part)


def describe_validation_error(err: ValidationError, tree: Any = None, option_names: OptionNames = no_names) -> str:
    """The first error in one line: the key, the rule, the value. Where a key is missing beside one that is unknown, the unknown
    one is told: it may be the other, misspelt. tree: what was validated."""
    first, *others = err.errors()
    misspelt = [f for f in others if f["type"] == "extra_forbidden" and f["loc"][:-1] == first["loc"][:-1]]
    fault = misspelt[0] if first["type"] == "missing" and misspelt else first
    loc = fault["loc"]  # for a stage, pydantic inserts its kind at the third position
    path = [*loc[:2], *loc[3:]] if loc[:1] == ("stages",) and len(loc) > 2 else [*loc]
    key = [path.pop()] if fault["type"] == "extra_forbidden" else []  # as it was written, whatever it contains
    path = [part for part in path if not re.search(r"[\[(]", str(part))]  # of a union, pydantic names the member that it tried
    path += key
    where = ".".join(str(p) for p in path)
    if fault["type"] == "extra_forbidden":
        return describe_unknown_key(path, fault["loc"], fault.get("input"), _id_beside(path, tree), option_names)
    if fault["type"] == "missing":
        return f"{where!r} is missing: add it (docs/run-files.md)"
    if fault["type"] in ("union_tag_not_found", "union_tag_invalid"):
        kinds = ", ".join(f'kind = "{kind}"' for kind in STAGES)
        tag = str(fault.get("ctx", {}).get("tag", ""))
        theirs = "; ".join(names_here(tag)) or 'an algorithm is a key of kind = "rl"'
        found = f"found {tag!r:.60}: " if tag else ""
        return f"{where!r} needs {kinds}, or the id of a plugin's stage (mmrl list stages); {found}{theirs}"
    found = fault.get("input")
    heading = ".".join(part for part in path if isinstance(part, str))
    sections = _TYPES["list"] == describe_error(fault) and isinstance(found, Mapping) and heading in (*OPTIONS, "stages")
    if fault["type"] == "model_type":
        message = "it is a section: write its keys, such as { key = value }"
    elif sections:
        message = f"it is a list of sections: write [[{heading}]] in place of [{heading}], or [{{...}}] in place of {{...}}"
    else:
        message = describe_error(fault).rstrip(".")
    if not path:
        return message
    told = sections or (fault["type"] == "value_error" and isinstance(found, dict))  # the rule names it
    shown = "" if told else f"; found {found!r}"
    of_losses = path[-1] == "loss" or path[-2:-1] == ["losses"]
    theirs = "; ".join(names_here(str(found))) if fault["type"] == "literal_error" and of_losses else ""
    return f"{where!r}: {message[0].lower()}{message[1:]}{shown}{f': {theirs}' if theirs else ''}"


def _id_beside(path: Sequence[int | str], tree: Any) -> str:
    """The `id` in the table that has the key at this path; empty if it has none."""
    for part in path[:-1]:
        inner = isinstance(tree, Mapping) or (isinstance(tree, list) and isinstance(part, int))
        tree = (tree.get(part) if isinstance(tree, Mapping) else tree[part]) if inner else None
    found = tree.get("id") if isinstance(tree, Mapping) else None
    return found if isinstance(found, str) else ""


_TYPES: Mapping[str, str] = {
    "dict": "it should be a table: write its keys, such as { key = value }",
    "list": "it should be a list, such as [1, 2]",
    "tuple": "it should be a list, such as [1, 2]",
    "string": "it should be a text in quotes",
    "bool": "it should be true or false",
    "int": "it should be a whole number",
    "float": "it should be a number",
}
"""How pydantic's names of errors of a type begin -> what to say: it speaks of Python's types."""


def describe_error(fault: ErrorDetails) -> str:
    """The message of one of the schema's own rules, or pydantic's message."""
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "int_parsing_size":
        return "it is too large: lower it"
    kind, _, wrong = fault["type"].partition("_")
    return _TYPES[kind] if wrong in ("type", "parsing", "from_float") and kind in _TYPES else fault["msg"]


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The resolved config as plain data without unset values, as written to `config.toml` in the run folder."""
    return config.model_dump(mode="json", exclude_none=True)

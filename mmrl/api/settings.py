"""`--set KEY=VALUE` of commands that build one task, verifier or simulator."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from mmrl.api.errors import UserError


def parse_value(text: str) -> Any:
    """A value as it would stand in a TOML file; anything that isn't TOML is taken as text."""
    try:
        found = tomllib.loads(f"v = {text}")
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
    return found["v"] if found.keys() == {"v"} else text  # a line break could hide a second key


def key_values(texts: Iterable[str]) -> dict[str, Any]:
    """`["size=56", "root=pictures"]` as `{"size": 56, "root": "pictures"}`; a value is written as in TOML."""
    options = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UserError(f"--set {text!r} has no value: write --set key=value")
        options[key.strip()] = parse_value(value)
    return options

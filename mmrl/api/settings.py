"""`--set KEY=VALUE` of commands that build one task, verifier or simulator."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from mmrl.api.errors import UserError


def parse_value(text: str) -> Any:
    """Parse a TOML value; text that isn't TOML is returned as it is."""
    try:
        table = tomllib.loads(f"v = {text}")
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
    return table["v"] if table.keys() == {"v"} else text  # a line break could hide a second key


def key_values(texts: Iterable[str]) -> dict[str, Any]:
    """`["size=56", "root=pictures"]` -> `{"size": 56, "root": "pictures"}`; values are written as in TOML. Raises UserError for
    a text without a value."""
    options = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UserError(f"--set {text!r} has no value: write --set key=value")
        options[key.strip()] = parse_value(value)
    return options

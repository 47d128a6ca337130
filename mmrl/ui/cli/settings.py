"""`--set KEY=VALUE` of commands that build one task, verifier or simulator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmrl.api.errors import UserError


def key_values(texts: Iterable[str]) -> dict[str, Any]:
    """`["size=56", "root=pictures"]` as `{"size": 56, "root": "pictures"}`; values are parsed as TOML, else kept as text."""
    from mmrl.config.load import parse_value

    options = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UserError(f"--set {text!r} has no value: write --set key=value")
        options[key.strip()] = parse_value(value)
    return options

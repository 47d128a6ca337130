"""Text as HTML. Model output is untrusted: all text on a page goes through `esc`."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from typing import Any

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def esc(value: Any, limit: int = 0) -> str:
    """Text as HTML, safe between tags and in a quoted attribute; other values as JSON. Control characters, direction marks and
    lone surrogates are shown as codes. limit: maximal characters, 0 for all; a longer text loses its middle."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if limit and len(text) > limit:
        head, tail = text[: limit // 2], text[-limit // 2 :]
        return f"{esc(head)}<em> ... {len(text) - len(head) - len(tail):,} characters left out ... </em>{esc(tail)}"
    return html.escape(visible(text))


def rounded(value: Any) -> Any:
    """Plain data with its floats rounded to four significant digits, or to integers if those have more."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.4g}") if abs(value) < 1000 else round(value)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def visible(text: str) -> str:
    """The text with control characters, direction marks and lone surrogates replaced by codes such as `\\u200b`, and line ends of
    Windows by plain ones."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


def count(n: int, noun: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"

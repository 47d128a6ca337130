"""Parse completions: the answer, with spans of time, counts, an order, a letter, a number. For our own verifiers.

Completions may be hostile: everything here takes time linear in their length and raises nothing. Unreadable text is no answer,
nor are two answers. Boxes are read in `tracks.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Case
from mmrl.api.verifiers.parse import (
    MAX_DEPTH,
    MAX_LENGTH,
    NUMBER,
    depth,
    fenced_blocks,
    nfc,
    only_answer,
    parse_number,
    parse_numbers,
    without_thinking,
)
from mmrl_video.spans import Span

LONGEST = 2_000
"""Maximum of characters of an answer with spans, and of most other answers."""
PROSE = 200
"""Maximum of characters around spans."""
LATEST = 1e6
"""Latest end of a span in seconds: eleven days."""
MOST = 32
"""Maximum of spans in an answer."""
WORDS = 8
"""Maximum of words around a number: a unit, "about", "apples on the table"."""
LISTS = ("spans", "intervals", "segments", "glue", "times", "span", "interval", "segment", "time", "timestamps", "timestamp")
"""Keys of a JSON object for a span, or several."""
STARTS, ENDS = ("start", "start_time", "from", "begin"), ("end", "end_time", "to", "stop")
_TAG = re.compile("</?(?:think|answer)>")
_MARKS = str.maketrans(
    {**dict.fromkeys("[](){}`*\"'\u201c\u201d", " "), **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")}
)
_UNIT = re.compile(r"(?<=[0-9]) ?(?:seconds?|secs?|s)\b", re.IGNORECASE)
_CLOCK = re.compile(r"(?:[0-9]{1,2}:)?[0-9]{1,3}:[0-5][0-9](?:\.[0-9]{1,9})?")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}")
_TIME = rf"({_CLOCK.pattern}|{_SECONDS.pattern})"
_JOIN = (
    r"(?: ?(?:-|~|\.\.\.?|->|=>|,|;|\bto\b|\buntil\b|\btill\b|\bthrough\b|\band\b) ?"
    r"| ?[,;]? ?(?:and )?(?:it )?end(?:s|ing)?(?:[ _]time)?(?: at)? ?[:=]? ?| )"
)
_SPAN = re.compile(rf"(?<![\w.:-])(?<!- ){_TIME}{_JOIN}{_TIME}(?! ?-)(?![\w:]|\.[0-9])", re.IGNORECASE)
_LEAD = re.compile(
    r"(?:(?:the |my )?(?:(?:final|correct|best|right) )?(?:answer|option|choice|letter)(?: is)? ?:? ?)?", re.IGNORECASE
)
_LETTER = re.compile(r"[(\[*]*([A-Za-z])[)\]*]*[.:,)]?(?P<rest>.*)", re.DOTALL)
_NUMBERED = re.compile(r"\s*\(?[A-Za-z][).:]\s+")
"""The letter before an option's text."""
_COUNTS = re.compile(r"[0-9]{1,9}(?: [0-9]{1,9})*")
_NAMED = (
    re.compile(r"(?P<count>[0-9]{1,9}) (?P<name>[^\W\d_]+)"),
    re.compile(r"(?P<name>[^\W\d_]+) ?[:=]? ?(?P<count>[0-9]{1,9})"),
)
"""`2 circles`, and `circles: 2`."""
_EDGES = "\"'`*.,;:!?()[]{}\u201c\u201d"


# -- the answer -------------------------------------------------------------------------------------------------------------


def said(case: Case) -> tuple[str | None, str]:
    """(the answer's text, ""), or (None, why there is none). If the task requests tags (`meta["style"]`) or the completion has
    some, it is the text of the one answer tag, else all that stands behind the thinking."""
    text = without_thinking(case.completion)
    if case.meta.get("style") == "tags" or len(case.completion) > MAX_LENGTH or _TAG.search(text or case.completion):
        inside, why = only_answer(case.completion)
    else:
        inside, why = text, ""
    return (None, "an empty answer") if inside is not None and not inside.strip() else (inside, why)


def only_json(text: str) -> Any:
    """The value of a text that is a JSON list or object, in a fence or not; None for all else."""
    plain = text.strip()
    if plain.startswith("```") and plain.endswith("```") and plain.count("```") == 2:
        plain = next(fenced_blocks(plain), "").strip()
    if len(plain) > MAX_LENGTH or (plain[:1], plain[-1:]) not in (("[", "]"), ("{", "}")):
        return None
    try:
        found = json.loads(plain)
    except (ValueError, RecursionError):
        return None
    return found if depth(found) <= MAX_DEPTH else None


# -- spans of time ----------------------------------------------------------------------------------------------------------


def spans(text: str) -> list[Span] | None:
    """The spans of an answer, in seconds and in its order; None if it has none, or anything but spans.

    `12.5 to 17`, `12.5-17`, `[12.5, 17]`, `00:12 - 00:17`, `between 12.5 and 17 seconds`, `starts at 12.5 and ends at 17`; JSON
    objects with `start` and `end`, or with a key of `LISTS`. A reversed, empty or negative span makes all invalid.
    """
    if len(text) > LONGEST:
        return None
    value = only_json(text)
    if value is not None:
        found = spans_of(value)
    elif "{" in text:
        return None
    else:
        found = _spans_in(text)
    if not found or len(found) > MOST:
        return None
    return found if all(0 <= start < end <= LATEST for start, end in found) else None


def span(text: str) -> Span | None:
    """The one span of an answer; None if there is none, or more than one."""
    found = spans(text)
    return found[0] if found is not None and len(found) == 1 else None


def seconds(value: Any) -> float | None:
    """A point of time: a number, or a text such as `12.5`, `12.5s`, `00:12`, `1:02:03.5`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if -LATEST <= value <= LATEST else None
    if not isinstance(value, str) or len(value) > 40:
        return None
    plain = _UNIT.sub("", value.strip())
    if _CLOCK.fullmatch(plain):
        hours, minutes, rest = ["0", *plain.split(":")][-3:]
        return int(hours) * 3600 + int(minutes) * 60 + float(rest)
    return float(plain) if _SECONDS.fullmatch(plain) else None


def _spans_in(text: str) -> list[Span] | None:
    """The spans of a text that is not JSON."""
    if text.count("[") + text.count("(") > 2 * MOST:
        return None
    plain = " ".join(_UNIT.sub("", " ".join(text.translate(_MARKS).split())).split())
    around = _SPAN.sub(" ", plain)
    if len(around) > PROSE or any(sign.isdigit() for sign in around):
        return None
    pairs = [(seconds(match[1]), seconds(match[2])) for match in _SPAN.finditer(plain)]
    return [(start, end) for start, end in pairs if start is not None and end is not None]


def spans_of(value: Any) -> list[Span] | None:
    """The spans of a JSON value."""
    if isinstance(value, Mapping):
        start = next((value[key] for key in STARTS if key in value), None)
        end = next((value[key] for key in ENDS if key in value), None)
        if start is None or end is None:
            key = next((key for key in LISTS if key in value), None)
            inner = value[key] if key else None
            return _spans_in(inner) if isinstance(inner, str) else spans_of(inner) if isinstance(inner, list) else None
        value = [start, end]
    if not isinstance(value, list):
        return None
    times = [seconds(one) for one in value] if len(value) == 2 else [None]
    if len(times) == 2 and times[0] is not None and times[1] is not None:
        return [(times[0], times[1])]
    found: list[Span] = []
    for one in value[: MOST + 1]:
        inner = spans_of(one) if isinstance(one, list | Mapping) else None
        if inner is None or len(inner) != 1:
            return None
        found += inner
    return found


# -- counts, orders, letters, numbers ---------------------------------------------------------------------------------------


def counts(text: str, names: Sequence[str], many: int) -> list[int] | None:
    """The counts of an answer, `many` of them: `2, 1, 3`, a JSON list, and if they have names, in any order, `2 circles, 1 square
    and 3 triangles`, `circle: 2, ...`, or a JSON object. None for anything else."""
    if len(text) > LONGEST:
        return None
    value = only_json(text)
    if isinstance(value, Mapping):
        pairs = [(str(name), count) for name, count in value.items()]
        return _by_name(pairs, names)
    if isinstance(value, list):
        whole = [one for one in value if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 10**9]
        return whole if len(whole) == len(value) == many else None
    plain = " ".join(re.sub(r"[\[\](),;/|\s]+", " ", text).split()).removesuffix(".").strip()
    if plain.isascii() and _COUNTS.fullmatch(plain):
        found = [int(one) for one in plain.split(" ")]
        return found if len(found) == many else None
    for named in _NAMED if "-" not in plain else ():
        around = named.sub(" ", plain)
        if len(around) <= PROSE and not any(sign.isdigit() for sign in around):
            return _by_name([(match["name"], int(match["count"])) for match in named.finditer(plain)], names)
    return None


def ratings(text: str) -> list[float] | None:
    """The numbers of an answer from 0 on, at least one, and nothing else: `0, 3, 2.5`, a JSON list."""
    words = re.sub(r"[\[\],;\s]+", " ", text).split() if len(text) <= LONGEST else []
    return [float(word) for word in words] if words and all(map(_SECONDS.fullmatch, words)) else None


def _by_name(pairs: list[tuple[str, Any]], names: Sequence[str]) -> list[int] | None:
    """The counts in the order of `names`; None if one is missing, repeated or not a whole number, or there is another name."""
    found: dict[str, int] = {}
    for said_name, count in pairs:
        name = next((name for name in names if _alike(said_name, name)), None)
        if name is None or name in found or isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 10**9:
            return None
        found[name] = count
    return [found[name] for name in names] if names and len(found) == len(names) else None


def _alike(found: str, name: str) -> bool:
    a, b = found.strip().casefold(), name.strip().casefold()
    return a == b or a + "s" == b or a == b + "s"


def order(text: str, true: Sequence[str]) -> list[str] | None:
    """The signs of `true` in the order of an answer: `2, 1, 3`, `[2, 1, 3]`, `2 -> 1 -> 3`, and if each is one character, `213`.
    None unless each occurs exactly once, and nothing else."""
    if len(text) > LONGEST:
        return None
    plain = re.sub(r"->|=>|[\[\](),;|>\u2192`\"'\s-]+", " ", text).strip().removesuffix(".").strip()
    found = plain.split()
    if len(found) == 1 and all(len(one) == 1 for one in true):
        found = list(found[0])
    found = [one.upper() for one in found]
    return found if sorted(found) == sorted(one.upper() for one in true) else None


def letter(text: str, options: Sequence[str] = ()) -> str | None:
    """The one letter that an answer chooses, a capital: `B`, `(b)`, `B.`, `The answer is B`, `B. a red square` if that is the
    option's text. None for any other answer."""
    plain = " ".join(text.split())
    if len(plain) > LONGEST:
        return None
    lead = _LEAD.match(plain)
    match = _LETTER.fullmatch(plain[lead.end() if lead else 0 :])
    if not match:
        return None
    found, rest = match[1].upper(), match["rest"].strip()
    place = ord(found) - ord("A")
    option = plain_words(_NUMBERED.sub("", str(options[place]), 1)) if place < len(options) else []
    named = bool(option) and match.start("rest") > match.end(1) and plain_words(rest) == option
    return found if not rest or named else None


def value(text: str) -> float | None:
    """The one number of an answer, with few words around it; None if there is none, or more than one."""
    if len(text) > LONGEST:
        return None
    plain = " ".join(text.split())
    if (whole := parse_number(plain)) is not None:
        return whole
    found = parse_numbers(plain, 2)
    if len(found) != 1 or len(NUMBER.findall(plain)) != 1 or any(sign.isdigit() for sign in NUMBER.sub(" ", plain)):
        return None
    return found[0] if len(plain.split()) <= WORDS and not re.search(r"[\[{<>=|\\]", plain) and math.isfinite(found[0]) else None


def plain_words(text: str, case: bool = False) -> list[str]:
    """The words of a text in the form for comparisons: without stops, quotes and brackets around them, and in small letters
    unless `case` is set."""
    folded = nfc(text) if case else nfc(nfc(text).casefold())
    return [word.strip(_EDGES) or word for word in folded.split()]

"""What a completion says: its tags, its JSON, its numbers. For verifiers.

A completion is hostile input. Everything here takes time linear in its length, reads no more than `MAX_LENGTH` characters of it,
and gives None, or nothing, where it can't be read; only `literal` raises anything.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import threading
import unicodedata
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

MAX_LENGTH = 200_000
"""Characters of a completion that are read; a longer one counts as unreadable."""
MAX_DEPTH = 32
"""How deep JSON may be nested."""
MAX_MARKS = 32
"""Marks on one letter, accents and the like: Unicode's stream-safe form (UAX #15) has 30 at most, and no language more."""
STARTS = 64
"""Places at which JSON is looked for in prose."""
NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,40})(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,3})?(?!\w|\.[0-9])"
    r"|(?<![\w.])[-+\u2212]?\.[0-9]{1,40}(?!\w)"
)


# -- tags -------------------------------------------------------------------------------------------------------------------


def only_answer(text: str, tag: str = "answer") -> tuple[str | None, str]:
    """(what the one `<tag>...</tag>` holds, ""), or (None, why there is not exactly one, after the thinking)."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if len(text) > MAX_LENGTH:
        return None, f"longer than {MAX_LENGTH:,} characters"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None, f"{text.count(opening)} opening and {text.count(closing)} closing {tag} tags"
    before, _, rest = text.partition(opening)
    inside, end, after = rest.partition(closing)
    if not end:
        return None, f"the {tag} tag closes before it opens"
    if before.rfind("<think>") > before.rfind("</think>") or "think>" in after:
        return None, f"the {tag} tag is inside the thinking"
    return inside, ""


def short_answer(text: str, tags: bool, longest: int, searched: int) -> tuple[str | None, str]:
    """(the answer, ""), or (None, why there is none): what `only_answer` finds, or all of the text where the prompt asked for no
    `tags` and there are none in as many characters as are `searched`. longest: characters of an answer."""
    found, why = only_answer(text) if tags or "answer>" in text[:searched] else (text, "")
    if found is not None and len(found) > longest:
        return None, f"an answer of {len(found):,} characters"
    return (None, "no answer") if found is not None and not found.strip() else (found, why)


def tag_contents(text: str, tag: str) -> Iterator[str]:
    """What stands in each `<tag>...</tag>`, in order: the matches of `<tag>(.*?)</tag>` with line breaks, in linear time."""
    opening, closing, at = f"<{tag}>", f"</{tag}>", 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        yield text[start + len(opening) : end]
        at = end + len(closing)


def first_tag(text: str, tag: str = "answer") -> str | None:
    """What the first `<tag>...</tag>` holds, line breaks included; None without one."""
    return next(tag_contents(text, tag), None)


def last_tag(text: str, tag: str = "answer") -> str | None:
    """What the last of the tags holds that `re.findall` with `<tag>(.*?)</tag>` finds; None without one."""
    found = deque(tag_contents(text, tag), maxlen=1)
    return found[0] if found else None


def first_tag_on_line(text: str, tag: str = "answer") -> str | None:
    """What the first `<tag>(.*?)</tag>` holds that opens and closes on one line, as a pattern without DOTALL finds it."""
    for line in text.split("\n"):
        if (found := first_tag(line, tag)) is not None:
            return found
    return None


def has_think_answer_format(text: str) -> bool:
    """Whether `<think>.*?</think>\\s*<answer>.*?</answer>` matches the whole text, line breaks included: the format reward of
    VLM-R1, CLS-RL, UI-R1, GUI-R1 and Video-R1. Empty blocks and further tags inside pass, blanks around don't."""
    if not (text.startswith("<think>") and text.endswith("</answer>")):
        return False
    return any(m.start() >= len("<think>") and m.end() <= len(text) - len("</answer>") for m in _TURN.finditer(text))


_TURN = re.compile(r"</think>\s*<answer>")


def thinks_and_answers_once(text: str) -> bool:
    """Whether a text is one `<think>` and one `<answer>` block, neither empty, with blanks at most around them."""
    text = text.strip()
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return False
    thought, _, answer = text.partition("</think>")
    answer = answer.strip()
    blocks = thought.startswith("<think>") and answer.startswith("<answer>") and answer.endswith("</answer>")
    return blocks and bool(thought[7:].strip()) and bool(answer[8:-9].strip())


# -- JSON -------------------------------------------------------------------------------------------------------------------


def find_json(text: str, kinds: type | tuple[type, ...] = (list, dict)) -> Any:
    """The JSON value that a text holds: all of it, or in a ``` fence, or else the first list or object in its prose. None without
    one of these kinds. NaN and Infinity, nesting beyond `MAX_DEPTH` and numbers of thousands of digits are no JSON."""
    if len(text) > MAX_LENGTH:
        return None
    for piece in (text, *fenced_blocks(text)):
        found = _json(piece.strip())
        if isinstance(found, kinds) and not isinstance(found, bool):
            return found
    starts = [m.start() for _, m in zip(range(STARTS), re.finditer(r"[\[{]", text), strict=False)]
    end = 0
    for start in starts:
        if start < end:
            continue
        try:
            found, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start
            continue
        if isinstance(found, kinds) and depth(found) <= MAX_DEPTH:
            return found
    return None


def only_json(text: str, *, spare: int | None = None, prose: int | None = None, fence: bool = False) -> Any:
    """The one JSON list or object of a text: all from the first bracket to the last. None where that is no JSON, because there
    are two, or because something is wrong with it; and where the text around it holds more than `spare` numbers, which are
    another answer, or more than `prose` characters. fence: of a text with one ``` fence it is what stands in that."""
    plain = text.strip()
    start = min((at for sign in "[{" if (at := plain.find(sign)) >= 0), default=-1)
    if start < 0:
        return None
    blocks = [block.strip() for block in fenced_blocks(plain)] if fence and plain.count("```") == 2 else []
    piece = blocks[0] if blocks else plain[start : max(plain.rfind("]"), plain.rfind("}")) + 1]
    around = plain.replace(piece, " ", 1) if piece else plain
    if (spare is not None and len(_DIGITS.findall(around)) > spare) or (prose is not None and len(around) > prose):
        return None
    found = find_json(piece)
    try:  # json_in also takes the first of two
        return found if found is not None and json.loads(piece) == found else None
    except (ValueError, RecursionError):
        return None


_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]*)?")


def fenced_blocks(text: str) -> Iterator[str]:
    """What stands between ``` fences, without the language's name."""
    parts = text.split("```")
    for inside in parts[1::2] if len(parts) % 2 else parts[1:-1:2]:
        name, _, rest = inside.partition("\n")
        yield rest if name.strip().isalnum() or not name.strip() else inside


def depth(value: Any) -> int:
    """How deep lists and objects are nested; a plain value has 0."""
    level, found = [value], 0
    while inner := [v for x in level if isinstance(x, list | dict) for v in (x.values() if isinstance(x, dict) else x)]:
        level, found = inner, found + 1
        if found > MAX_DEPTH:
            break
    return found + any(isinstance(x, list | dict) for x in level)


def _json(text: str) -> Any:
    if not text:
        return None
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if depth(found) <= MAX_DEPTH else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _integer(text: str) -> int:
    if len(text) > 40:
        raise ValueError("an integer of too many digits")
    return int(text)


def _float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError("a number that no float holds")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_int=_integer, parse_float=_float)


# -- letters ----------------------------------------------------------------------------------------------------------------


def nfc(text: str) -> str:
    """The text in Unicode's form NFC, in linear time. Where more than `MAX_MARKS` marks follow each other it stays as it is:
    sorting them takes time by the square of their number."""
    return text if text.isascii() or _marked(text) else unicodedata.normalize("NFC", text)


def _marked(text: str) -> bool:
    """Whether more than `MAX_MARKS` marks follow each other."""
    run = 0
    for sign in text if not text.isascii() else "":
        run = run + 1 if unicodedata.category(sign)[0] == "M" else 0
        if run > MAX_MARKS:
            return True
    return False


# -- literals ---------------------------------------------------------------------------------------------------------------

_WARNED_OF = re.compile(r"\\|[0-9a-fA-FjJ.](?:and|else|for|if|in|is|not|or)")
"""All that Python's parser may warn of: a backslash that escapes nothing, a number without a blank before a word."""
_FILTERS = threading.Lock()


def literal(text: str, longest: int = MAX_LENGTH) -> Any:
    """What `ast.literal_eval` gives, which evaluates nothing; ValueError for all that it doesn't read, for a longer text, and
    where more than `MAX_MARKS` marks follow each other: Python sorts those of a name, in time by the square of their number."""
    if len(text) > longest:
        raise ValueError(f"longer than {longest:,} characters")
    if _marked(text):
        raise ValueError(f"more than {MAX_MARKS} marks on a letter")
    try:
        with _no_warnings() if _WARNED_OF.search(text) else contextlib.nullcontext():
            return ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("no literal") from error


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Python's parser warns of what a model writes oddly: that is nobody's fault, and no error where warnings are errors. All
    other warnings stay as they are, and one thread at a time does this, since filters belong to the process."""
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="<unknown>")  # as `ast.literal_eval` calls what it parses
        yield


# -- numbers ----------------------------------------------------------------------------------------------------------------


def parse_number(text: str) -> float | None:
    """The number that a text is: `12`, `-3.5`, `+.5`, `1,234`, `1e3`, with blanks around, one full stop at the end, a percent or
    currency sign. None for any other text: digits are 0 to 9, those of other scripts and full-width ones are none."""
    plain = text.strip().removesuffix(".").strip("$€£% \t\n") if len(text) < 200 else ""
    match = NUMBER.fullmatch(plain)
    return _value(match[0]) if match else None


def parse_numbers(text: str, most: int = 10_000) -> list[float]:
    """The first numbers of a text, in order. Digits inside words (`x1`, `bbox_2d`) are none."""
    found = (_value(m[0]) for _, m in zip(range(most), NUMBER.finditer(text[:MAX_LENGTH]), strict=False))
    return [v for v in found if v is not None]


def _value(text: str) -> float | None:
    value = float(text.replace(",", "").replace("\u2212", "-"))
    return value if math.isfinite(value) else None

"""Parsers of completions for verifiers: tags, JSON, numbers.

A completion is untrusted input. All functions take linear time, read at most `MAX_LENGTH` characters, and return None or an empty
result if they can't parse it; only `literal` raises.
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
"""Largest number of characters of a completion; a longer one is not parsed."""
MAX_DEPTH = 32
"""Largest nesting depth of JSON."""
MAX_MARKS = 32
"""Largest number of combining marks (accents and the like) on one letter. Unicode's stream-safe form (UAX #15) allows 30, and no
language needs more."""
THOUGHTS = (("<think>", "</think>"), ("<|channel>thought", "<channel|>"), ("[THINK]", "[/THINK]"))
"""The signs that thinking begins and ends with: of most models, of Gemma 4, of Mistral."""
STARTS = 64
"""Largest number of positions at which JSON is tried in prose."""
NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,40})(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,3})?(?!\w|\.[0-9])"
    r"|(?<![\w.])[-+\u2212]?\.[0-9]{1,40}(?!\w)"
)


# -- tags -------------------------------------------------------------------------------------------------------------------


def thought(text: str) -> tuple[str, str]:
    """(thinking, answer): what stands before the first `</think>`, without the `<think>` that begins it, and what stands behind,
    as in the reasoning parsers of vLLM and SGLang. Thinking that doesn't end has no answer behind it; a text without thinking is
    all answer. The same with the other signs of `THOUGHTS` in a text that begins with them."""
    start, end = _signs(text) or THOUGHTS[0]
    before, closed, after = text.partition(end)
    if closed:
        return before.replace(start, "", 1), after
    rest, opened, inside = text.partition(start)
    return (inside, rest) if opened else ("", text)


def with_thinking(thinking: str, answer: str, ended: bool = True) -> str:
    """A text of thinking and an answer that came apart; without thinking the answer. ended: False if it was cut off."""
    if not thinking:
        return answer
    return f"<think>{thinking}" + (f"</think>{answer}" if answer or ended else "")


def without_thinking(text: str) -> str:
    """The answer of `thought` in a text that begins with `<think>` or other signs of `THOUGHTS`, empty where thinking doesn't
    end. Any other text whole, as an answer may quote `</think>`."""
    return thought(text)[1].lstrip() if _signs(text) else text


def _signs(text: str) -> tuple[str, str] | None:
    """Those of the thinking that a text begins with, in `THOUGHTS`."""
    begun = text.lstrip()
    return next((signs for signs in THOUGHTS if begun.startswith(signs[0])), None)


def only_answer(text: str, tag: str = "answer") -> tuple[str | None, str]:
    """(content of the only `<tag>...</tag>`, ""), or (None, reason) if there is not exactly one, outside of the thinking. What a
    completion that begins with `<think>` thinks may name the tags."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if len(text) > MAX_LENGTH:
        return None, f"longer than {MAX_LENGTH:,} characters"
    said = without_thinking(text)
    if opening in text and opening not in said:
        return None, f"the {tag} tag is inside the thinking"
    if said.count(opening) != 1 or said.count(closing) != 1:
        return None, f"{said.count(opening)} opening and {said.count(closing)} closing {tag} tags"
    before, _, rest = said.partition(opening)
    inside, end, after = rest.partition(closing)
    if not end:
        return None, f"the {tag} tag closes before it opens"
    if before.rfind("<think>") > before.rfind("</think>") or "think>" in after:
        return None, f"the {tag} tag is inside the thinking"
    return inside, ""


def short_answer(text: str, tags: bool, longest: int, searched: int) -> tuple[str | None, str]:
    """(answer, ""), or (None, reason). The answer is that of `only_answer`, or all that stands behind the thinking if the prompt
    doesn't require tags and there are none.

    tags: whether the prompt requires tags. longest: largest number of characters of an answer. searched: number of characters at
    the beginning in which tags are looked for."""
    said = without_thinking(text)
    found, why = only_answer(text) if tags or "answer>" in said[:searched] else (said, "")
    if found is not None and len(found) > longest:
        return None, f"an answer of {len(found):,} characters"
    return (None, "no answer") if found is not None and not found.strip() else (found, why)


def tag_contents(text: str, tag: str) -> Iterator[str]:
    """The content of each `<tag>...</tag>`, in order: the matches of `<tag>(.*?)</tag>` with DOTALL, in linear time."""
    opening, closing, at = f"<{tag}>", f"</{tag}>", 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        yield text[start + len(opening) : end]
        at = end + len(closing)


def first_tag(text: str, tag: str = "answer") -> str | None:
    """The content of the first `<tag>...</tag>`, line breaks included; None without one."""
    return next(tag_contents(text, tag), None)


def last_tag(text: str, tag: str = "answer") -> str | None:
    """The content of the last `<tag>...</tag>`, the last match of `<tag>(.*?)</tag>` with DOTALL; None without one."""
    contents = deque(tag_contents(text, tag), maxlen=1)
    return contents[0] if contents else None


def first_tag_on_line(text: str, tag: str = "answer") -> str | None:
    """The content of the first `<tag>(.*?)</tag>` that opens and closes on one line, as a pattern without DOTALL matches."""
    opening, closing, at = f"<{tag}>", f"</{tag}>", 0
    while (start := text.find(opening, at)) >= 0:
        at = line_end if (line_end := text.find("\n", start)) >= 0 else len(text)
        if (end := text.find(closing, start + len(opening), at)) >= 0:
            return text[start + len(opening) : end]
    return None


def has_think_answer_format(text: str) -> bool:
    """Whether `<think>.*?</think>\\s*<answer>.*?</answer>` matches the whole text, line breaks included: the format reward of
    VLM-R1, CLS-RL, UI-R1, GUI-R1 and Video-R1. Empty blocks and further tags inside pass; white space around doesn't."""
    if not (text.startswith("<think>") and text.endswith("</answer>")):
        return False
    return any(m.start() >= len("<think>") and m.end() <= len(text) - len("</answer>") for m in _TURN.finditer(text))


_TURN = re.compile(r"</think>\s*<answer>")


def thinks_and_answers_once(text: str) -> bool:
    """Whether a text is one `<think>` and one `<answer>` block, neither empty, with only white space around them."""
    text = text.strip()
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return False
    thought, _, answer = text.partition("</think>")
    answer = answer.strip()
    blocks = thought.startswith("<think>") and answer.startswith("<answer>") and answer.endswith("</answer>")
    return blocks and bool(thought[7:].strip()) and bool(answer[8:-9].strip())


# -- JSON -------------------------------------------------------------------------------------------------------------------


def find_json(text: str, kinds: type | tuple[type, ...] = (list, dict)) -> Any:
    """The JSON value in a text: the whole text, or the content of a ``` fence, or else the first list or object in the prose.
    None if there is none of the types `kinds`. NaN, Infinity, nesting deeper than `MAX_DEPTH` and integers of more than 40 digits
    are refused."""
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
    """The only JSON list or object in a text: everything from the first bracket to the last. None if that is no valid JSON, such
    as for two values; or if the text around it has more than `spare` numbers, which would be another answer, or more than `prose`
    characters. fence: if the text has one ``` fence, use its content."""
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
    try:  # find_json would also accept the first of two values
        return found if found is not None and json.loads(piece) == found else None
    except (ValueError, RecursionError):
        return None


_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]*)?")


def fenced_blocks(text: str) -> Iterator[str]:
    """The contents of ``` fences, without the name of the language."""
    parts = text.split("```")
    for inside in parts[1::2] if len(parts) % 2 else parts[1:-1:2]:
        name, _, rest = inside.partition("\n")
        yield rest if name.strip().isalnum() or not name.strip() else inside


def depth(value: Any) -> int:
    """The nesting depth of lists and objects; 0 for any other value."""
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
        raise ValueError("the integer has too many digits")
    return int(text)


def _float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError("the number is too large for a float")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_int=_integer, parse_float=_float)


# -- letters ----------------------------------------------------------------------------------------------------------------


def nfc(text: str) -> str:
    """The text in Unicode's form NFC, in linear time. A text with more than `MAX_MARKS` combining marks in a row is returned as
    it is, since sorting marks takes quadratic time."""
    return text if text.isascii() or _marked(text) else unicodedata.normalize("NFC", text)


def _marked(text: str) -> bool:
    """Whether a text has more than `MAX_MARKS` combining marks in a row."""
    run = 0
    for sign in text if not text.isascii() else "":
        run = run + 1 if unicodedata.category(sign)[0] == "M" else 0
        if run > MAX_MARKS:
            return True
    return False


# -- literals ---------------------------------------------------------------------------------------------------------------

_WARNED_OF = re.compile(r"\\|[0-9a-fA-FjJ.](?:and|else|for|if|in|is|not|or)")
"""Everything that Python's parser may warn of: an invalid escape sequence, a number directly before a keyword."""
_FILTERS = threading.Lock()


def literal(text: str, longest: int = MAX_LENGTH) -> Any:
    """`ast.literal_eval` of a text. Raises ValueError for anything that is no literal, for a text longer than `longest`, and for
    more than `MAX_MARKS` combining marks in a row, since Python sorts the marks of a name in quadratic time."""
    if len(text) > longest:
        raise ValueError(f"longer than {longest:,} characters")
    if _marked(text):
        raise ValueError(f"more than {MAX_MARKS} marks on a letter")
    try:
        with _no_warnings() if _WARNED_OF.search(text) else contextlib.nullcontext():
            return ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("the text is no literal") from error


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Switch off the warnings of Python's parser about a model's text, which must not become errors. Other warnings stay on. Only
    one thread at a time may do this, since warning filters belong to the process."""
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="<unknown>")  # the module name that `ast.literal_eval` uses
        yield


# -- numbers ----------------------------------------------------------------------------------------------------------------


def parse_number(text: str) -> float | None:
    """Parse a text that is one number: `12`, `-3.5`, `+.5`, `1,234`, `1e3`. White space around it, one full stop at the end, and
    a percent or currency sign are allowed. None for any other text. Only 0 to 9 are digits, not those of other scripts or
    full-width ones."""
    plain = text.strip().removesuffix(".").strip("$€£% \t\n") if len(text) < 200 else ""
    match = NUMBER.fullmatch(plain)
    return _value(match[0]) if match else None


def parse_numbers(text: str, most: int = 10_000) -> list[float]:
    """The first `most` numbers in a text, in order. Digits inside words (`x1`, `bbox_2d`) don't count."""
    found = (_value(m[0]) for _, m in zip(range(most), NUMBER.finditer(text[:MAX_LENGTH]), strict=False))
    return [v for v in found if v is not None]


def _value(text: str) -> float | None:
    value = float(text.replace(",", "").replace("\u2212", "-"))
    return value if math.isfinite(value) else None

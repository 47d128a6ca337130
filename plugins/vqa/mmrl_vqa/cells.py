"""What stands in the cells of a table of questions: options, accepted answers, pictures, conversations."""

from __future__ import annotations

import ast
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmrl import user_message
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.tables import DataTable
from mmrl_vqa.asking import letter_of

INDEX = 64
"""Maximum characters of another row's index; a longer cell is a picture."""
PLACE = "<image>"
"""What stands in a text where a picture belongs."""
MANY = 26
"""Maximum of options of a question: each has a letter."""
_TAGGED = re.compile(r".*<answer>(.*?)</answer>\s*", re.DOTALL)
_NUMBERS = re.compile(r"\[ ?-?[0-9.]+(?: ?, ?-?[0-9.]+)+ ?\]")


def by_name(cells: Mapping[str, Any]) -> list[Any]:
    """The options of a table in the order of their names, 10 after 9; if these are letters, each at the place of its letter."""
    cells = {str(name): value for name, value in cells.items()}
    names = sorted(cells, key=lambda name: (len(name), name))
    if all(re.fullmatch("[A-Za-z]", name) for name in names):
        named = {name.upper(): value for name, value in cells.items()}
        return [named.get(letter_of(place)) for place in range(ord(max(named, default="@")) - ord("@"))]
    return [cells[name] for name in names]


def texts(cells: Sequence[Any]) -> list[str]:
    """The options, without empty ones. Raises ValueError for too few or too many, and for equal ones: pictures aren't."""
    options = [str(cell).strip() for cell in cells if cell not in (None, "")]
    different = len({f"{option}{place if PLACE in option else ''}" for place, option in enumerate(options)})
    if len(options) == 1 or len(options) > MANY or different < len(options):
        raise ValueError(f"{len(options)} options, {different} of them different: give 2 to {MANY}, all different")
    return options


def in_places(text: str, pictures: Sequence[Any], options: Sequence[str]) -> Mapping[str, Any]:
    """The message of a prompt. If the text has a place for each of its pictures they stand there, and otherwise before it. Raises
    ValueError for another number of places, if options are among them."""
    pieces = text.split(PLACE)
    if len(pieces) != len(pictures) + 1:
        if any(PLACE in option for option in options):
            raise ValueError(f"question and options have {len(pieces) - 1} {PLACE}, and there are {len(pictures)} pictures")
        return user_message("".join(pieces).strip(), *pictures)
    parts: list[dict[str, Any]] = []
    for piece, picture in zip(pieces, [*pictures, None], strict=True):
        piece = piece if any(part["type"] == "text" for part in parts) else piece.lstrip()  # of the line of pictures before it
        parts += [{"type": "text", "text": piece}] if piece.strip() else []
        parts += [{"type": "image", "image": picture}] if picture is not None else []
    return {"role": "user", "content": parts}


def other_question(row: Mapping[str, Any], column: str) -> str:
    if not isinstance(row[column], str) or not row[column].strip():
        raise ValueError(f"{column} is {row[column]!r:.60}, not a question in other words")
    return str(row[column]).strip()


def filled(cell: Any) -> list[Any]:
    """The pictures in a cell, one or a list."""
    cell = listed(cell)
    return [c for c in (cell if isinstance(cell, list | tuple) else [cell]) if c is not None and c != ""]


def with_shared_pictures(rows: DataTable) -> DataTable:
    """A table in whose column `image` a row may name another row's `index`, whose picture it has, as in VLMEvalKit's files."""
    if not {"index", "image"} <= {*rows.columns}:
        return rows

    @functools.cache
    def places() -> dict[str, int]:
        return {str(row["index"]): place for place, row in enumerate(rows.scan(["index"])) if row}

    def read(number: int) -> Any:
        row = rows.read(number)
        image = row["image"]
        other = places().get(image) if isinstance(image, str) and 0 < len(image) <= INDEX else None
        return row if other is None else {**row, "image": rows.read(other)["image"]}

    return replace(rows, read=read)


def turns_of(turns: Any) -> tuple[Any, Any]:
    """Question and answer of a conversation in the format of VLM-R1 and LLaVA."""
    if (
        not isinstance(turns, list | tuple)
        or len(turns) < 2
        or not all(isinstance(t, Mapping) and "value" in t for t in turns[:2])
    ):
        raise ValueError("conversations must hold two turns with a value each: the question, then the answer")
    answer = turns[1]["value"]
    return turns[0]["value"], answer.replace("<answer>", "").replace("</answer>", "").strip() if isinstance(
        answer, str
    ) else answer


def accepted_of(answer: Any) -> list[str]:
    """The accepted answers, as texts; those of annotators may be {"answer": ...} each, as in VQA's files. A text such as `[0, 1]`
    is one answer, an interval or a list of MathVista's, and not two. One that is written as a completion, as R1-V's and
    open-r1's `solution`, is what its last answer tag holds."""
    cells = answer if isinstance(answer, str) and is_numbers(answer) else listed(answer)
    cells = cells if isinstance(cells, list | tuple) else [cells]
    if any(isinstance(c, float) and not math.isfinite(c) for c in cells):
        raise ValueError(f"the answer is {answer!r:.60}: there must be one")
    plain = [c.get("answer") if isinstance(c, Mapping) else "yes" if c is True else "no" if c is False else c for c in cells]
    said = [str(c) for c in plain if c is not None]
    found = [bare for text in said if (bare := (tagged[1] if (tagged := _TAGGED.fullmatch(text)) else text).strip())]
    if not found:
        raise ValueError(f"the answer is {answer!r:.60}: there must be one")
    return found


def is_numbers(text: str) -> bool:
    """Whether a text is a list of two numbers or more."""
    return len(text) <= 1000 and bool(_NUMBERS.fullmatch(text.strip()))


def option_of(answer: Any, options: Sequence[str]) -> str | None:
    """The option that says what an answer true or false means; None for any other answer, or without such an option."""
    if not isinstance(answer, bool):
        return None
    words = ("true", "yes") if answer else ("false", "no")
    return next((option for option in options if option.casefold() in words), None)


def listed(cell: Any) -> Any:
    """A list or a table that a cell has as text, in JSON as in CSV or as Python writes it, as in MMMU; anything else
    unchanged."""
    if not isinstance(cell, str) or cell.strip()[:1] not in ("[", "{"):
        return cell
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(cell.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return found if isinstance(found, list | dict) else cell  # and no set: {1, 2} may be an answer
    return cell


def shuffled(right: int, options: Sequence[str], seed: int, id: str) -> tuple[int, list[str]]:
    order = list(range(len(options)))
    chance(seed, "options", id).shuffle(order)
    return order.index(right), [options[i] for i in order]

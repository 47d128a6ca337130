"""Rows of pairs in the forms in which people and models leave their preferences.

- TRL's (its page "Dataset formats"): `chosen` and `rejected` as texts, or as turns that end with the assistant's; `prompt` as a
  text or turns, or none, if both sides begin with it. RLAIF-V and MMPR call the prompt `question`.
- LLaVA-RLHF's (Sun et al. 2023, arXiv 2309.14525): `conversations` up to the question, `output_1`, `output_2`, and `preference`,
  1 or 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

IMAGES = ("images", "image", "image_path", "image_paths")
"""Columns that hold pictures; the first that a row has is read."""
PROMPTS = ("prompt", "question", "problem")
"""Columns that hold the prompt."""
PLACE = re.compile(r"<image>\n?")
ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}


class PairRow(NamedTuple):
    """A row of pairs."""

    turns: list[tuple[str, str]]
    """(role, text) of the prompt; `<image>` stands for a picture."""
    preferred: str
    rejected: str
    images: list[Any]


def read_row(row: Mapping[str, Any]) -> PairRow:
    """Read a row. Raises KeyError for a column that is missing, ValueError for one that can't be used, and for equal sides."""
    turns, preferred, rejected = llava_rlhf(row) if "output_1" in row else trl(row)
    for name, text in (("preferred", preferred), ("rejected", rejected)):
        if not text.strip():
            raise ValueError(f"its {name} side is empty")
    if preferred == rejected:
        raise ValueError(f"both sides are {preferred[:60]!r}, so neither is preferred")
    if not any(role == "user" for role, _ in turns):
        raise ValueError("its prompt has no turn of the user")
    cell: Any = next((found for name in IMAGES if (found := _parsed(row.get(name))) not in (None, "", [])), [])
    return PairRow(turns, preferred, rejected, list(cell) if isinstance(cell, list | tuple) else [cell])


def trl(row: Mapping[str, Any]) -> tuple[list[tuple[str, str]], str, str]:
    """(turns of the prompt, preferred, rejected) of a row in TRL's form."""
    sides = [_side(row[name], name) for name in ("chosen", "rejected")]
    name = next((name for name in PROMPTS if _parsed(row.get(name)) not in (None, "", [])), "")
    if name:
        given = _said(row[name])
        turns = [("user", given)] if isinstance(given, str) else _turns(given, name)
        before = [side[:-1] for side in sides if len(side) > 1]
        if any(own != turns for own in before):
            raise ValueError(f"a side has other turns before its answer than {name} has")
    else:
        turns = sides[0][:-1]
        if turns != sides[1][:-1] or not turns:
            raise ValueError(f"its sides don't begin with the same turns, and no column {', '.join(PROMPTS)} holds the prompt")
    return turns, sides[0][-1][1], sides[1][-1][1]


def llava_rlhf(row: Mapping[str, Any]) -> tuple[list[tuple[str, str]], str, str]:
    """(turns of the prompt, preferred, rejected) of a row in LLaVA-RLHF's form."""
    turns = _turns(_said(row["conversations"]), "conversations")
    if turns[-1][0] == "assistant":
        raise ValueError("conversations ends with an answer, and must end with the question")
    outputs = [_side(row[name], name)[-1][1] for name in ("output_1", "output_2")]
    if row["preference"] not in (1, 2, "1", "2"):
        raise ValueError(f"preference is {row['preference']!r:.40}, and must be 1 or 2")
    first = int(row["preference"]) == 1
    return turns, outputs[not first], outputs[first]


def _side(cell: Any, name: str) -> list[tuple[str, str]]:
    """The turns of a side, the answer last."""
    cell = _said(cell)
    if isinstance(cell, Mapping):
        cell = [cell]
    turns = [("assistant", cell)] if isinstance(cell, str) else _turns(cell, name)
    if turns[-1][0] != "assistant":
        raise ValueError(f"{name} ends with a turn of the {turns[-1][0]}, not of the assistant")
    return turns


def _turns(cell: Any, name: str) -> list[tuple[str, str]]:
    if not isinstance(cell, Sequence) or isinstance(cell, str) or not cell or not all(isinstance(t, Mapping) for t in cell):
        raise ValueError(f"{name} is {cell!r:.60}, not a text or a list of turns")
    turns = []
    for turn in cell:
        role, said = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if isinstance(said, list):
            said = "".join("<image>" if part.get("type") == "image" else str(part.get("text") or "") for part in said)
        if role not in ROLES or not isinstance(said, str):
            raise ValueError(f"a turn of {name} is {dict(turn)!r:.80}: it needs a role ({', '.join(ROLES)}) and a text")
        turns.append((ROLES[role], said))
    return turns


def _said(cell: Any) -> Any:
    """A cell of text or turns. Turns that a CSV holds as JSON are read; other JSON, such as a box, is a text."""
    found = _parsed(cell)
    turns = found if isinstance(found, list) else [found]
    return found if turns and all(isinstance(t, Mapping) and ("role" in t or "from" in t) for t in turns) else cell


def _parsed(cell: Any) -> Any:
    """A cell; lists and objects that a CSV holds as JSON are read."""
    if isinstance(cell, str) and cell.strip()[:1] in ("[", "{"):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return cell

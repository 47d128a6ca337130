"""The processors of a SmolVLA: those of every policy of LeRobot's, and how an instruction is tokenised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_processors import BEFORE, Files, lists_of, norm_map, read_steps, write_steps
from mmrl.policies.acting.lerobot_processors import Processors as OfLeRobot
from mmrl.policies.acting.units import Statistics

NEWLINE, TOKENIZE = "smolvla_new_line_processor", "tokenizer_processor"


@dataclass(frozen=True, kw_only=True)
class Processors(OfLeRobot):
    """What the steps say. The defaults are those of `make_smolvla_pre_post_processors`, without statistics."""

    newline: bool = True
    """Whether an instruction ends with a newline."""
    longest: int = 48
    """Tokens after which an instruction is cut off."""
    tokenizer: str = ""


def read_processors(files: Files) -> Processors | None:
    """The processors of a checkpoint, None if it has none. Raises UserError for steps that can't be done here."""
    name, read = files.name, read_steps(files, (NEWLINE, TOKENIZE))
    if read is None:
        return None
    shared, before = read
    said = before.get(TOKENIZE, {})
    found = Processors(
        renamed=shared.renamed,
        before=shared.before,
        behind=shared.behind,
        newline=NEWLINE in before,
        longest=said.get("max_length", 512),
        tokenizer=said.get("tokenizer_name") or "",
    )
    if (visual := found.before.norms.get("VISUAL", "IDENTITY")) != "IDENTITY":
        raise UserError(f"{name!r}: {BEFORE} normalises pictures by {visual}, which can't be done here", key="policy.model")
    if type(found.longest) is not int or found.longest < 1:
        raise UserError(f"{name!r}: {BEFORE} can't be read: its max_length is none", key="policy.model")
    return found


def write_processors(
    folder: Path, found: Processors, statistics: Statistics | None, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> None:
    """Write both files and the statistics; see `write_steps`."""
    tokenize = {"max_length": found.longest, "task_key": "task", "padding_side": "right", "padding": "longest"}
    read: list[tuple[str, dict[str, Any]]] = [(NEWLINE, {})] if found.newline else []
    read += [(TOKENIZE, {**tokenize, "truncation": True, "tokenizer_name": found.tokenizer})]
    write_steps(folder, found.renamed, norm_map(statistics), lists_of(statistics), inputs, outputs, read=read)

"""What `mmrl consult` does: models in the roles of specialists answer the questions of a table (MMedAgent-RL)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.endpoints.answers import NoAnswer
from mmrl.api.endpoints.client import ChatEndpoint, Question
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.errors import display_path
from mmrl.api.tasks.tables import read_table
from mmrl.api.types import user_message
from mmrl.api.verifiers.parse import last_tag
from mmrl_judge.answered_tables import check_out, pictures_of, placed_row, write_rows

ROLE = "You are a specialist: {role}. Answer from the point of view of your specialty."
FORM = "Think first. End with your answer alone in <answer> </answer> tags: of options, the letter."


def consult(
    table: str,
    out: Path,
    endpoint: ChatEndpoint,
    *,
    roles: Sequence[str],
    role_column: str | None,
    each: int,
    question_column: str,
    overwrite: bool,
) -> Iterator[str]:
    """Write OUT, the table with a column `opinions`; yields the lines to print. roles: those that see every row. role_column:
    column with the specialty of a row, which a triage named. each: answers in each role. Raises UserError for options that
    can't work, and for a table of which no question is answered."""
    check_out(out, overwrite)
    if not roles and role_column is None:
        raise UserError("no specialist is named: give --role NAME, or --role-column with the column of each row's specialty")
    rows = read_table(table)
    encoder, asked = ChatEncoder(), []
    for number in range(len(rows)):
        row = rows[number]
        own = [*roles, *([str(row[role_column])] if role_column is not None and row.get(role_column) else [])]
        if not own or not isinstance(row.get(question_column), str):
            raise UserError(f"{rows.location(number)} has no question in {question_column!r}, or no specialist: correct it")
        asked += [(number, role, n, _messages(encoder, table, row, role, question_column)) for role in own for n in range(each)]
    replies = endpoint.ask([Question(messages=m, max_tokens=2048, temperature=1.0, seed=n) for _, _, n, m in asked])
    opinions: dict[int, list[dict[str, str]]] = {}
    failed = []
    for (number, role, _, _), reply in zip(asked, replies, strict=True):
        said = "" if isinstance(reply, NoAnswer) else " ".join((last_tag(reply.text) or "").split())
        if said:
            opinions.setdefault(number, []).append({"role": role, "answer": said})
        else:
            failed.append(str(reply) if isinstance(reply, NoAnswer) else "a reply has no answer tag")
    if not opinions:
        raise UserError(f"no question of {display_path(table)} was answered: {failed[0] if failed else 'it has no rows'}")
    written = write_rows(({**placed_row(rows, table, n, out), "opinions": said} for n, said in sorted(opinions.items())), out)
    yield f"{display_path(out)}: {written} rows of {len(rows)}, {sum(map(len, opinions.values()))} opinions, {len(failed)} failed"
    yield from (f"failed: {why}" for why in list(dict.fromkeys(failed))[:3])


def _messages(encoder: ChatEncoder, table: str, row: Mapping[str, Any], role: str, column: str) -> list[dict[str, Any]]:
    """What a specialist is told about a row."""
    _, pictures = pictures_of(table, row)
    cell = row.get("options") or ()
    if isinstance(cell, str):  # in CSV a list is written as JSON
        try:
            cell = json.loads(cell)
        except ValueError:
            cell = None
    if not isinstance(cell, list | tuple):
        raise UserError(f"{display_path(table)}: the options {row['options']!r:.60} are no list: correct them")
    options = [f"{chr(ord('A') + n)}. {option}" for n, option in enumerate(cell)]
    text = "\n".join([row[column].replace("<image>", "").strip(), *options, FORM])
    return encoder([{"role": "system", "content": ROLE.replace("{role}", role)}, user_message(text, *pictures)])[0]

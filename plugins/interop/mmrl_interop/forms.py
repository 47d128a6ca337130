"""Rows in the forms of other trainers' data sets: their chat with its media, the answer, and all else that their rewards read.

The forms are those of TRL (`prepare_multimodal_messages`), verl (its page "Prepare Data for Post-Training"), EasyR1
(`verl/utils/dataset.py`), ms-swift (its page on custom data sets), LLaVA (`docs/Finetune_Custom_Data.md`), ShareGPT and Alpaca,
as LLaMA-Factory reads them (`data/README.md`), and The Cauldron, which FineVision shares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from mmrl import UserError
from mmrl_interop.chats import MEDIA, filled, plain, read_chat

ANSWERS = ("solution", "answer", "ground_truth")
"""Columns that may hold the answer of a conversation; without one it is the assistant's last turn, or None: rewards of TRL and
ms-swift may read any column, or none."""
OBJECTS = re.compile("<bbox>|<point>|<cot-process>")
"""Places of ms-swift for what its templates write in the numbers of a model."""
REFERENCE = "<ref-object>"
"""Place of ms-swift for a name of `objects.ref`."""


@dataclass(frozen=True, slots=True)
class Example:
    """What a row says."""

    messages: list[dict[str, Any]]
    answer: Any
    meta: dict[str, Any]
    """Columns that other trainers' rewards get: ms-swift's and TRL's as they are, verl's `extra_info` with `data_source`."""
    target: str | None = None
    """The assistant's last turn, where the row has one."""


def read_form(form: str, row: Mapping[str, Any], template: Callable[[str], str] | None = None) -> Example:
    """Read a row. form: one of `FORMS`. template: makes EasyR1's prompt of a problem, as its `format_prompt` does.

    Raises KeyError for a column that is missing, ValueError and UserError for one that can't be used."""
    return FORMS[form](row, template) if form in ("easyr1", "trl") else FORMS[form](row)


def detect_form(columns: Sequence[str]) -> str:
    """The form of a table with these columns. Raises UserError for one that is none of them."""
    for form, marks in {
        "verl": ("prompt", "reward_model"),
        "swift": ("messages",),
        "trl": ("prompt",),  # before `problem`: TRL's examples make it of one, and keep that
        "easyr1": ("problem",),
        "sharegpt": ("conversations", "images"),
        "llava": ("conversations",),
        "cauldron": ("texts",),
    }.items():
        if all(mark in columns for mark in marks):
            return form
    if "instruction" in columns or {"query", "response"} <= {*columns}:
        return "alpaca"
    raise UserError(
        f"no form of {', '.join(FORMS)} has the columns {', '.join(map(str, columns))[:200]}: "
        'set form, say which column is which, such as columns = {problem = "question"}, or use vqa/table'
    )


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """The row under a form's names. columns: the form's name of a column -> the table's. Raises KeyError."""
    own = {key: value for key, value in row.items() if key not in columns and key not in columns.values()}
    return own | {name: row[column] for name, column in columns.items()} if columns else row


def verl(row: Mapping[str, Any]) -> Example:
    """`prompt`, a chat; `reward_model.ground_truth`; `data_source`, `ability`, `extra_info`; `images`, `videos`."""
    truth = plain(row["reward_model"])
    if not isinstance(truth, Mapping) or "ground_truth" not in truth:
        raise ValueError(f"reward_model is {truth!r:.60} and has no ground_truth")
    info = plain(row.get("extra_info")) or {}
    if not isinstance(info, Mapping):
        raise ValueError(f"extra_info is {info!r:.60}, not a table")
    meta = {**info, **{key: row[key] for key in ("data_source", "ability") if key in row}}
    return Example(filled(*read_chat(row, "prompt")), truth["ground_truth"], meta)


def easyr1(row: Mapping[str, Any], template: Callable[[str], str] | None = None) -> Example:
    """`problem`, a text; `answer`, or the columns of R1-V and open-r1; `images` or `videos`."""
    problem = row["problem"]
    if not isinstance(problem, str) or not problem.strip():
        raise ValueError(f"problem is {problem!r:.60}, not a text")
    name = next((name for name in ("answer", *ANSWERS) if not _blank(row.get(name))), "answer")
    if _blank(row[name]):
        raise ValueError(f"answer is {row[name]!r}")
    text = template(problem) if template else problem
    return Example(filled([{"role": "user", "content": text}], row), row[name], _others(row, {"problem", "answer"}))


def trl(row: Mapping[str, Any], template: Callable[[str], str] | None = None) -> Example:
    """`prompt`, a chat, or a text as in EasyR1's rows; `images` or `image`; other columns, such as `solution` or `answer`."""
    prompt = plain(row["prompt"])
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ValueError(f"prompt is {prompt!r}, not a text")
        prompt = [{"role": "user", "content": template(prompt) if template else prompt}]
    return _conversation({**row, "prompt": prompt}, "prompt", at_front=True)


def swift(row: Mapping[str, Any]) -> Example:
    """`messages`, a chat whose last turn may be the assistant's; `images`, `videos`; other columns, such as `solution`; names of
    `objects.ref` in the place of <ref-object>."""
    objects = plain(row.get("objects"))
    names = objects.get("ref") if isinstance(objects, Mapping) else None
    return _conversation(row, "messages", at_front=True, names=[*names] if isinstance(names, list) else [])


def sharegpt(row: Mapping[str, Any]) -> Example:
    """`conversations`, turns of `from` and `value`; `images` or `image`, `videos` or `video`; LLaVA's form is the same."""
    return _conversation(row, "conversations", at_front=False)


def alpaca(row: Mapping[str, Any]) -> Example:
    """`instruction`, `input` and `output`, or ms-swift's `query` and `response`, texts; `history`, pairs of texts; `images`."""
    used = ("instruction", "input", "query", "output", "response", "history")
    asked = "\n".join(text for key in used[:3] if isinstance(text := row.get(key), str) and text.strip())
    said = next((row[key] for key in used[3:5] if not _blank(row.get(key))), None)
    history = plain(row.get("history")) or []
    if not isinstance(history, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in history):
        raise ValueError(f"history is {history!r:.60}, not a list of pairs of texts")
    turns = [turn for pair in history for turn in zip(("user", "assistant"), pair, strict=True)]
    turns += [("user", asked), *([] if said is None else [("assistant", said)])]
    chat = [{"role": role, "content": text} for role, text in turns]
    if not asked:
        raise ValueError("there is no text under instruction or query")
    return _conversation({**{k: v for k, v in row.items() if k not in used}, "messages": chat}, "messages", at_front=True)


def cauldron(row: Mapping[str, Any]) -> Example:
    """`texts`, pairs of `user` and `assistant`; `images`, which come first."""
    pairs = plain(row["texts"])
    if not isinstance(pairs, list) or not all(isinstance(pair, Mapping) for pair in pairs):
        raise ValueError(f"texts is {pairs!r:.60}, not a list of turns")
    chat = [{"role": role, "content": pair.get(role)} for pair in pairs for role in ("user", "assistant")]
    return _conversation({**row, "texts": chat}, "texts", at_front=True)


FORMS: dict[str, Callable[..., Example]] = {
    "trl": trl,
    "verl": verl,
    "easyr1": easyr1,
    "swift": swift,
    "llava": sharegpt,
    "sharegpt": sharegpt,
    "alpaca": alpaca,
    "cauldron": cauldron,
}


# -- chats ------------------------------------------------------------------------------------------------------------------


def _conversation(row: Mapping[str, Any], column: str, at_front: bool, names: list[Any] | None = None) -> Example:
    """A chat with its answer. names: what ms-swift's places stand for, which are used up; None where text has no such places."""
    chat, row = read_chat(row, column)
    used = {column}
    if column != "prompt" and chat[0]["role"] != "system" and isinstance(system := row.get("system"), str) and system.strip():
        chat.insert(0, {"role": "system", "content": system})  # a column of ms-swift and LLaMA-Factory; TRL's rewards get it
        used.add("system")
    target = chat.pop()["content"] if chat[-1]["role"] == "assistant" else None
    if not any(turn["role"] == "user" for turn in chat):
        raise ValueError(f"{column} has no turn of the user before the answer")
    answer = next((row[name] for name in ANSWERS if not _blank(row.get(name))), target)
    if _blank(answer) and target is not None:
        raise ValueError(f"there is no answer: {column} ends with an empty turn, and no column {', '.join(ANSWERS)}")
    if names is not None:
        chat = [{**turn, "content": _named(turn["content"], names, column)} for turn in chat]
        if target is not None and (OBJECTS.search(target) or REFERENCE in target):
            target = _named(target, names, column) if answer is target else None
            answer = target or answer
    return Example(filled(chat, row, at_front), answer, _others(row, used), target)


def _named(text: str, names: list[Any], column: str) -> str:
    """A text of ms-swift with names in their places. Raises UserError for places of coordinates, and for too few names."""
    if found := OBJECTS.search(text):
        raise UserError(
            f"{column} contains {found[0]}, for which ms-swift writes an object in the numbers of the model: "
            "grounding/refer-data reads boxes, and asks for them in these"
        )
    first, *others = text.split(REFERENCE)
    if len(others) > len(names):
        raise UserError(f"{column} contains {REFERENCE} more often than objects.ref has names: correct or remove it")
    return first + "".join(f"{names.pop(0)}{piece}" for piece in others)


def _others(row: Mapping[str, Any], used: set[str]) -> dict[str, Any]:
    """The columns that are neither the chat nor media."""
    media = {name for names in MEDIA.values() for name in names}
    return {str(key): value for key, value in row.items() if key not in used | media and not isinstance(value, bytes)}


def _blank(answer: Any) -> bool:
    """Whether an answer is none, so that no completion can be right. Tables of numbers say so by NaN."""
    return answer is None or (isinstance(answer, float) and isnan(answer)) or (isinstance(answer, str) and not answer.strip())

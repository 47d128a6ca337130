"""Rows in the forms of other trainers' data sets: their chat with its media, the answer, and all else that their rewards read.

The forms are those of TRL (`prepare_multimodal_messages`), verl (its page "Prepare Data for Post-Training"), EasyR1
(`verl/utils/dataset.py`), ms-swift (its page on custom data sets), LLaVA (`docs/Finetune_Custom_Data.md`) and ShareGPT, as
LLaMA-Factory reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import UserError
from mmrl.api.media.clips import Clip
from mmrl_interop.verl import NAMES as SELECTIONS

MEDIA = {"image": ("images", "image"), "video": ("videos", "video")}
"""Kind of media -> the columns that hold them."""
PLACES = re.compile("(<image>|<video>|<audio>)")
ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
ANSWERS = ("solution", "answer", "ground_truth")
"""Columns that may hold the answer of a conversation; without one it is the assistant's last turn."""
GROUNDING = re.compile("<bbox>|<ref-object>|<point>|<cot-process>")
"""Places of ms-swift that stand for columns which aren't read."""


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
        "easyr1": ("problem",),
        "swift": ("messages",),
        "trl": ("prompt",),
    }.items():
        if all(mark in columns for mark in marks):
            return form
    if "conversations" in columns:
        return "sharegpt" if "images" in columns else "llava"
    raise UserError(
        f"no form of {', '.join(FORMS)} has the columns {', '.join(map(str, columns))[:200]}: set form, or use vqa/table"
    )


def verl(row: Mapping[str, Any]) -> Example:
    """`prompt`, a chat; `reward_model.ground_truth`; `data_source`, `ability`, `extra_info`; `images`, `videos`."""
    truth = _plain(row["reward_model"])
    if not isinstance(truth, Mapping) or "ground_truth" not in truth:
        raise ValueError(f"reward_model is {truth!r:.60} and has no ground_truth")
    info = _plain(row.get("extra_info")) or {}
    if not isinstance(info, Mapping):
        raise ValueError(f"extra_info is {info!r:.60}, not a table")
    meta = {**info, **{key: row[key] for key in ("data_source", "ability") if key in row}}
    return Example(_filled(_chat(row["prompt"], "prompt"), row), truth["ground_truth"], meta)


def easyr1(row: Mapping[str, Any], template: Callable[[str], str] | None = None) -> Example:
    """`problem`, a text; `answer`; `images` or `videos`."""
    problem = row["problem"]
    if not isinstance(problem, str) or not problem.strip():
        raise ValueError(f"problem is {problem!r:.60}, not a text")
    if _blank(row["answer"]):
        raise ValueError(f"answer is {row['answer']!r}")
    text = template(problem) if template else problem
    return Example(_filled([{"role": "user", "content": text}], row), row["answer"], _others(row, {"problem", "answer"}))


def trl(row: Mapping[str, Any], template: Callable[[str], str] | None = None) -> Example:
    """`prompt`, a chat, or a text as in EasyR1's rows; `images` or `image`; other columns, such as `solution` or `answer`."""
    prompt = _plain(row["prompt"])
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ValueError(f"prompt is {prompt!r}, not a text")
        prompt = [{"role": "user", "content": template(prompt) if template else prompt}]
    return _conversation({**row, "prompt": prompt}, "prompt", at_front=True)


def swift(row: Mapping[str, Any]) -> Example:
    """`messages`, a chat whose last turn may be the assistant's; `images`, `videos`; other columns, such as `solution`."""
    return _conversation(row, "messages", at_front=True)


def sharegpt(row: Mapping[str, Any]) -> Example:
    """`conversations`, turns of `from` and `value`; `images` or `image`, `videos` or `video`; LLaVA's form is the same."""
    return _conversation(row, "conversations", at_front=False)


FORMS: dict[str, Callable[..., Example]] = {
    "trl": trl,
    "verl": verl,
    "easyr1": easyr1,
    "swift": swift,
    "llava": sharegpt,
    "sharegpt": sharegpt,
}


# -- chats ------------------------------------------------------------------------------------------------------------------


def _conversation(row: Mapping[str, Any], column: str, at_front: bool) -> Example:
    chat = _chat(row[column], column)
    target = chat.pop()["content"] if chat[-1]["role"] == "assistant" else None
    if not any(turn["role"] == "user" for turn in chat):
        raise ValueError(f"{column} has no turn of the user before the answer")
    answer = next((row[name] for name in ANSWERS if not _blank(row.get(name))), target)
    if _blank(answer):
        raise ValueError(
            f"there is no answer: {column} ends with "
            + ("an empty turn" if target is not None else f"the {chat[-1]['role']}'s turn")
            + f", and no column {', '.join(ANSWERS)}"
        )
    return Example(_filled(chat, row, at_front), answer, _others(row, {column}), target)


def _chat(turns: Any, column: str) -> list[dict[str, str]]:
    """A chat with texts as its content."""
    turns = _plain(turns)
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, Mapping) for turn in turns):
        raise ValueError(f"{column} is {turns!r:.60}, not a list of turns")
    chat = []
    for turn in turns:
        said, role = turn.get("content", turn.get("value")), turn.get("role", turn.get("from"))
        if isinstance(said, list):
            said = "".join(_part(part, column) for part in said)
        if role not in ROLES or not isinstance(said, str):
            raise ValueError(f"a turn of {column} is {dict(turn)!r:.80}: it needs a role ({', '.join(ROLES)}) and a text")
        if GROUNDING.search(said):
            raise UserError(f"{column} contains {GROUNDING.search(said)[0]}, which stands for objects: write the coordinates out")  # type: ignore[index]
        chat.append({"role": ROLES[role], "content": said})
    return chat


def _part(part: Any, column: str) -> str:
    """A part of a turn's content as text with places."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in MEDIA:
        return f"<{kind}>"
    raise ValueError(f"a part of {column} is {part!r:.60}: it must be a text, an image or a video")


def _filled(chat: Sequence[Mapping[str, str]], row: Mapping[str, Any], at_front: bool = False) -> list[dict[str, Any]]:
    """The chat with the row's media in the place of <image> and <video>.

    at_front: media without a place stand before the first turn of the user, as in ms-swift and TRL; otherwise, where a row has no
    places at all, they do, and any other number is an error, as in the other trainers."""
    media = {kind: _media(row, kind) for kind in MEDIA}
    places = [place[1:-1] for turn in chat if turn["role"] != "assistant" for place in PLACES.findall(turn["content"])]
    if "audio" in places:
        raise UserError("its text contains <audio>: no policy hears")
    lacking = {kind: len(found) - places.count(kind) for kind, found in media.items()}
    for kind, missing in lacking.items():
        if missing < 0 or (missing and not at_front and kind in places):
            raise UserError(
                f"its text has {places.count(kind)} times <{kind}>, and the row {len(media[kind])} under {MEDIA[kind][0]}"
            )
    left = {kind: iter(found) for kind, found in media.items()}
    front = [kind for kind, missing in reversed(lacking.items()) for _ in range(missing)]  # videos first, as in ms-swift
    messages: list[dict[str, Any]] = []
    for turn in chat:
        kinds = front if turn["role"] == "user" else []
        parts: list[dict[str, Any]] = [{"type": kind, kind: next(left[kind])} for kind in kinds]
        front = [] if kinds else front
        for piece in PLACES.split(turn["content"]) if turn["role"] != "assistant" else [turn["content"]]:
            kind = piece[1:-1]
            if kind in media and PLACES.fullmatch(piece):
                parts.append({"type": kind, kind: next(left[kind])})
            elif piece:
                parts.append({"type": "text", "text": piece})
        messages.append(
            {"role": turn["role"], "content": parts if len(parts) != 1 or parts[0]["type"] != "text" else parts[0]["text"]}
        )
    return messages


def _media(row: Mapping[str, Any], kind: str) -> list[Any]:
    """The row's images or videos, undecoded: a path or bytes each, or a clip."""
    cells: Any = next((cell for name in MEDIA[kind] if (cell := _plain(row.get(name))) not in (None, "", [])), [])
    found = []
    for cell in cells if isinstance(cells, list) else [cells]:
        selection: dict[str, Any] = {}
        if isinstance(cell, Mapping):
            given = {field: cell[key] for field, key in SELECTIONS.items() if kind == "video" and cell.get(key) is not None}
            selection = {field: int(value) if field == "count" else value for field, value in given.items()}
            cell = next((cell[key] for key in ("bytes", "path", kind, "url") if cell.get(key)), None)
        if isinstance(cell, str):
            cell = cell.removeprefix("file://")
            if re.match("https?://|data:", cell):
                raise UserError(f"an {kind} is {cell[:40]!r}: save it as a file first")
        elif not isinstance(cell, bytes) or kind == "video":
            raise ValueError(f"{MEDIA[kind][0]} holds {cell!r:.60}, not a path{' or bytes' if kind == 'image' else ''}")
        found.append(Clip(path=cell, **selection) if kind == "video" else cell)
    return found


def _others(row: Mapping[str, Any], used: set[str]) -> dict[str, Any]:
    """The columns that are neither the chat nor media."""
    media = {name for names in MEDIA.values() for name in names}
    return {str(key): value for key, value in row.items() if key not in used | media and not isinstance(value, bytes)}


def _blank(answer: Any) -> bool:
    """Whether an answer is none, so that no completion can be right."""
    return answer is None or (isinstance(answer, str) and not answer.strip())


def _plain(cell: Any) -> Any:
    """A list or a table that a cell of text holds as JSON; anything else unchanged."""
    if isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return cell

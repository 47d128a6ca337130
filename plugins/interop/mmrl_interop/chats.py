"""Chats in other trainers' rows: their turns as texts with places, and the media that stand there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import UserError
from mmrl.api.media.clips import Clip
from mmrl_interop.verl import NAMES as SELECTIONS

MEDIA = {"image": ("images", "image"), "video": ("videos", "video")}
"""Kind of media -> the columns that hold them."""
FILES = ("bytes", "path", "image", "video", "url", "base64", "image_url", "video_url")
"""Keys under which a cell, or a part of a turn, has its file."""
PLACES = re.compile("(<image>|<video>|<audio>)")
ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read_chat(row: Mapping[str, Any], column: str) -> tuple[list[dict[str, str]], Mapping[str, Any]]:
    """A column's chat with texts as its content, and the row with the media that parts of turns hold themselves, as those of
    transformers, qwen_vl_utils and OpenAI's API do, in the columns of media. Raises ValueError for anything else."""
    turns = plain(row[column])
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, Mapping) for turn in turns):
        raise ValueError(f"{column} is {turns!r:.60}, not a list of turns")
    chat, held = [], dict[str, list[Any]]()
    for turn in turns:
        said, role = turn.get("content", turn.get("value")), turn.get("role", turn.get("from"))
        if isinstance(said, list):
            said = "".join(_part(part, column, held) for part in said)
        if role not in ROLES or not isinstance(said, str):
            raise ValueError(f"a turn of {column} is {dict(turn)!r:.80}: it needs a role ({', '.join(ROLES)}) and a text")
        chat.append({"role": ROLES[role], "content": said})
    return chat, {**row, **{MEDIA[kind][0]: files for kind, files in held.items()}}


def _part(part: Any, column: str, held: dict[str, list[Any]]) -> str:
    """A part of a turn's content as text with places. held: kind -> media that parts hold, to which this part's is added."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    medium = str(kind).removesuffix("_url")
    if medium in MEDIA:
        if any(part.get(key) for key in FILES):
            held.setdefault(medium, []).append(part)
        return f"<{medium}>"
    raise ValueError(f"a part of {column} is {part!r:.60}: it must be a text, an image or a video")


def filled(chat: Sequence[Mapping[str, str]], row: Mapping[str, Any], at_front: bool = False) -> list[dict[str, Any]]:
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
        said = turn["role"] == "assistant"
        for piece in [turn["content"]] if said else PLACES.split(turn["content"]):
            kind = piece[1:-1]
            if not said and kind in media and PLACES.fullmatch(piece):
                parts.append({"type": kind, kind: next(left[kind])})
            elif piece:
                parts.append({"type": "text", "text": piece})
        messages.append(
            {"role": turn["role"], "content": parts if len(parts) != 1 or parts[0]["type"] != "text" else parts[0]["text"]}
        )
    return messages


def _media(row: Mapping[str, Any], kind: str) -> list[Any]:
    """The row's images or videos, undecoded: a path, bytes or base64 each, or a clip."""
    cells: Any = next((cell for name in MEDIA[kind] if (cell := plain(row.get(name))) not in (None, "", [])), [])
    found = []
    for cell in cells if isinstance(cells, list) else [cells]:
        selection: dict[str, Any] = {}
        if isinstance(cell, Mapping):
            given = {field: cell[key] for field, key in SELECTIONS.items() if kind == "video" and cell.get(key) is not None}
            selection = {field: int(value) if field == "count" else value for field, value in given.items()}
        file = _file(cell)
        if isinstance(file, str):
            if re.match("https?://|data:", file) and not (kind == "image" and file.startswith("data:image/")):
                raise UserError(f"{file[:40]!r} is a URL: save it as a file first")
        elif not isinstance(file, bytes) or kind == "video":
            raise ValueError(f"{MEDIA[kind][0]} holds {file!r:.60}, not a path{' or bytes' if kind == 'image' else ''}")
        found.append(Clip(path=file, **selection) if kind == "video" else file)
    return found


def _file(cell: Any) -> Any:
    """The path, bytes or base64 of a cell, which may be a table of them, and may hold another, as OpenAI's `image_url` does."""
    for _ in range(2):
        if isinstance(cell, Mapping):
            cell = next((cell[key] for key in FILES if cell.get(key)), None)
    return cell.removeprefix("file://") if isinstance(cell, str) else cell


def plain(cell: Any) -> Any:
    """A list or a table that a cell of text holds as JSON; anything else unchanged."""
    if isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return cell

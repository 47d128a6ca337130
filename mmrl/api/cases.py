"""The JSON form of a `Case`: what `mmrl score` reads, and what adapters store beside a prompt of another trainer's data set."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError, did_you_mean, is_finite
from mmrl.api.types import Case, Message, Prompt, Status, Turn

KEYS: Mapping[str, Any] = {
    "completion": str,
    "answer": object,
    "meta": dict,
    "status": str,
    "images": list,
    "image_sizes": list,
    "model_sizes": list,
    "coordinate_format": str,
    "messages": list,
    "turns": list,
    "outcome": dict,
}
"""Key of a case -> type of its value. docs/interop.md describes them."""
TURN_KEYS: Mapping[str, Any] = {"text": str, "tokens": int, "reward": float, "messages": list}
"""The same for an entry of `turns`."""
NAMES: Mapping[Any, str] = {str: "text", dict: "an object", list: "a list", int: "a whole number", float: "a number"}
LARGEST_SIDE = 10**6
"""Largest width or height of an image, in pixels."""
MOST_TURNS = 10_000
DATA_URL = "data:image/"


def case_from_json(row: Any, where: str, processing: ImageProcessing | None = None) -> Case:
    """The case of a JSON object. Raises UserError for anything but what `KEYS` says.

    where: the object's place, for messages. processing: how the model processes images, where the object doesn't say it; by
    default coordinates are pixels, and the sizes for the model are unknown.

    Sizes of images are read from the images unless they are given. `completion` may be left out if there are `turns`: it is the
    text of the last one. A case has a rollout if it has `turns`."""
    check_keys(row, KEYS, where, "completion")
    if "completion" not in row and not row.get("turns"):
        raise UserError(f"{where} has no 'completion': add it")
    images = [read_image(image, where) for image in row.get("images", ())]
    written = _written(row, where, processing)
    image_sizes, model_sizes = _image_sizes(row, images, where), _sizes(row, "model_sizes", where)
    if processing and not model_sizes:
        model_sizes = tuple(map(processing.model_size, image_sizes))
    if model_sizes and len(model_sizes) != len(image_sizes):
        raise UserError(f"{where}: 'model_sizes' has {len(model_sizes)} entries for {len(image_sizes)} images: give one for each")
    if written is CoordinateFormat.MODEL_PIXELS and image_sizes and not model_sizes:
        raise UserError(f"{where}: coordinates in model-pixels need 'model_sizes', [width, height] of each image for the model")
    case = Case(
        completion=row.get("completion", ""),
        answer=row.get("answer"),
        meta=row.get("meta", {}),
        status=Status(_choice(row, "status", Status.FINISHED, [*Status], where)),
        media=tuple(images),
        image_sizes=image_sizes,
        model_sizes=model_sizes,
        coordinate_format=written,
        outcome=_outcome(row.get("outcome", {}), where),
    )
    return with_turns(case, _turns(row, where), _messages(row.get("messages", []), where)) if row.get("turns") else case


def _written(row: Mapping[str, Any], where: str, processing: ImageProcessing | None) -> CoordinateFormat:
    """The format of the coordinates."""
    if processing and "coordinate_format" not in row:
        try:
            return processing.coordinate_format
        except UserError as error:  # nobody knows it of this model
            raise UserError(f"{where} has no 'coordinate_format', and {error.what}") from None
    return CoordinateFormat(_choice(row, "coordinate_format", CoordinateFormat.PIXELS, [*CoordinateFormat], where))


def _image_sizes(row: Mapping[str, Any], images: Sequence[Any], where: str) -> tuple[tuple[int, int], ...]:
    given, found = _sizes(row, "image_sizes", where), tuple(_size(image, where) for image in images)
    if images and given and given != found and given != (*found, *_later_sizes(row, where)):
        raise UserError(f"{where}: 'image_sizes' says {_found(given)}, and the images are {_found(found)}: leave it out")
    return given or found


def _later_sizes(row: Mapping[str, Any], where: str) -> list[tuple[int, int]]:
    """The sizes of the images that an environment showed."""
    shown = (message for turn in (_turns(row, where) if row.get("turns") else ()) for message in turn.messages)
    parts = (part for message in shown if not isinstance(message["content"], str) for part in message["content"])
    return [_size(part["image"], where) for part in parts if part["type"] == "image"]


def with_turns(case: Case, turns: Sequence[Turn], messages: Sequence[Message] = (), task: str = "", id: str = "") -> Case:
    """The case of a conversation of several turns: with a rollout, and the last turn's text as its completion. messages: what
    the policy read before its first turn."""
    prompt = Prompt(messages=messages, answer=case.answer, meta=case.meta, task=task, id=id)
    rollout = Conversation(prompt=prompt, group=0, turns=tuple(turns), status=case.status, outcome=case.outcome)
    return replace(case, completion=rollout.completion or case.completion, rollout=rollout)


def make_turn(text: str, tokens: int | None = None, reward: float = 0.0, messages: Sequence[Message] = ()) -> Turn:
    """A turn that another program sampled. tokens: how many, the end token included; by default its words are counted. messages:
    what the policy read before it, after its last turn."""
    count = max(len(text.split()), 1) if tokens is None else tokens
    return Turn(
        observed_ids=(), token_ids=range(count), logprobs=(), text=text, reward=reward, messages=tuple(messages), terminated=True
    )


def case_to_json(case: Case, images: bool = True) -> dict[str, Any]:
    """The JSON object of a case; what is empty is left out. images: with the images, those in memory as PNG in base64.

    Tuples become lists. Raises UserError for an answer or meta that isn't plain data."""
    row: dict[str, Any] = {"completion": case.completion, "answer": case.answer, "meta": dict(case.meta)}
    row |= {"status": case.status.value, "coordinate_format": case.coordinate_format.value}
    row |= {"image_sizes": case.image_sizes, "model_sizes": case.model_sizes, "outcome": dict(case.outcome)}
    if images and case.media:
        row["images"] = [write_image(image) for image in case.media]
    if isinstance(case.rollout, Conversation):
        row["messages"] = messages_to_json(case.rollout.prompt.messages)
        row["turns"] = [
            {"text": t.text, "tokens": len(t.token_ids), "reward": t.reward, "messages": messages_to_json(t.messages)}
            for t in case.rollout.turns
        ]
    kept = {k: v for k, v in row.items() if k in ("completion", "answer") or v}
    try:
        plain: dict[str, Any] = json.loads(json.dumps(kept, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the answer or meta of a prompt can't be written as JSON ({error}): keep plain data in them") from error
    return plain


def read_image(image: Any, where: str) -> Any:
    """An image of a JSON object: a path stays one, a data URL becomes the bytes of its file."""
    if isinstance(image, str) and image.startswith("data:"):
        head, _, data = image.partition(",")
        if not head.startswith(DATA_URL) or not head.endswith(";base64"):
            raise UserError(f"{where}: {head[:40]!r} is no image in base64: write {DATA_URL}png;base64,...")
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UserError(f"{where}: an image in base64 can't be read ({error})") from None
    if not isinstance(image, str):
        raise UserError(f"{where}: 'images' must be a list of paths or data URLs, found {_found(image)}")
    return image


def write_image(image: Any) -> str:
    """An image as text: a path, or a data URL of an image in memory."""
    from pathlib import Path

    if isinstance(image, str | Path):
        return str(image)
    if not isinstance(image, bytes):
        from mmrl.api.media.images import load_image

        load_image(image).save(buffer := io.BytesIO(), "PNG")
        image = buffer.getvalue()
    return f"{DATA_URL}png;base64,{base64.b64encode(image).decode()}"


def messages_to_json(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Chat messages with their images as text, see `write_image`. Videos and sounds are left out."""

    def part(p: Mapping[str, Any]) -> dict[str, Any]:
        kind = p["type"]
        return {"type": kind, kind: write_image(p[kind]) if kind == "image" else p[kind]}

    def content(found: Any) -> Any:
        return found if isinstance(found, str) else [part(p) for p in found if p["type"] not in ("video", "audio")]

    return [{"role": m["role"], "content": content(m["content"])} for m in messages]


def check_keys(row: Any, known: Mapping[str, Any], where: str, example: str) -> None:
    """Raise UserError unless this is an object with known keys, and values of their types. example: a key for the message."""
    if not isinstance(row, Mapping):
        raise UserError(f'{where} is not a JSON object: write {{"{example}": ...}}')
    for key, value in row.items():
        if key not in known:
            raise UserError(f"{where} has an unknown key {key!r}.{did_you_mean(key, known)} Known keys: {', '.join(known)}")
        kind = known[key]
        fits = is_finite(value) if kind is float else isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        if not fits:
            raise UserError(f"{where}: {key!r} must be {NAMES[kind]}, found {_found(value)}")


def _turns(row: Mapping[str, Any], where: str) -> list[Turn]:
    if len(row["turns"]) > MOST_TURNS:
        raise UserError(f"{where}: {len(row['turns'])} turns are more than {MOST_TURNS}")
    turns = []
    for number, turn in enumerate(row["turns"]):
        place = f"{where}: turn {number}"
        check_keys(turn, TURN_KEYS, place, "text")
        if "text" not in turn:
            raise UserError(f"{place} has no 'text': add it")
        tokens = turn.get("tokens")
        if tokens is not None and not 0 <= tokens <= 10**7:
            raise UserError(f"{place}: 'tokens' must be from 0 to 10000000, found {_found(tokens)}")
        turns.append(make_turn(turn["text"], tokens, float(turn.get("reward", 0.0)), _messages(turn.get("messages", []), place)))
    said = next((t.text for t in reversed(turns) if t.token_ids), "")
    if row.get("completion", said) != said:
        raise UserError(f"{where}: 'completion' is not the text of the last turn: leave it out")
    return turns


def _messages(messages: Iterable[Any], where: str) -> list[Message]:
    found: list[Message] = []
    for number, message in enumerate(messages):
        place = f"{where}: message {number}"
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, str | list) or not isinstance(message.get("role"), str):
            raise UserError(f'{place} must be {{"role": ..., "content": text or a list of parts}}, found {_found(message)}')
        parts = content if isinstance(content, str) else [_part(p, place) for p in content]
        found.append({"role": message["role"], "content": parts})
    return found


def _part(part: Any, where: str) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "image": image}:
            return {"type": "image", "image": read_image(image, where)}
    raise UserError(
        f'{where}: a part must be {{"type": "text", "text": ...}} or {{"type": "image", "image": path or data URL}}, '
        f"found {_found(part)}"
    )


def _sizes(row: Mapping[str, Any], key: str, where: str) -> tuple[tuple[int, int], ...]:
    for size in row.get(key, ()):
        sound = isinstance(size, list | tuple) and len(size) == 2 and all(type(v) is int and 0 < v <= LARGEST_SIDE for v in size)
        if not sound:
            raise UserError(f"{where}: {key!r} must be a list of [width, height] in pixels, found {_found(size)}")
    return tuple((width, height) for width, height in row.get(key, ()))


def _size(image: Any, where: str) -> tuple[int, int]:
    from mmrl.api.media.images import load_image

    try:
        return load_image(image).size
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _outcome(outcome: Mapping[str, Any], where: str) -> dict[str, float]:
    for name, value in outcome.items():
        if not is_finite(value):
            raise UserError(f"{where}: 'outcome' must give a finite number for {name!r}, found {_found(value)}")
    return {name: float(value) for name, value in outcome.items()}


def _choice(row: Mapping[str, Any], key: str, default: str, known: Sequence[str], where: str) -> str:
    value, names = row.get(key, default), [str(name) for name in known]
    if value not in names:
        raise UserError(f"{where}: unknown {key} {value!r:.60}.{did_you_mean(value, names)} Known: {', '.join(names)}")
    return str(value)


def _found(value: Any) -> str:
    return json.dumps(value, default=repr)[:60]

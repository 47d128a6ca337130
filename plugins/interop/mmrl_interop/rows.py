"""Prompts as rows of another trainer's data set."""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from mmrl import Case, OpenTask, Prompt, Status, UserError
from mmrl.api.cases import case_from_json, case_to_json, make_turn, with_turns
from mmrl.api.media.clips import Clip
from mmrl.api.media.images import load_image

STORED = 4096
"""Rows that are kept as read: a group's completions share one."""
KEYS = {"task": str, "metric": str, "verifiers": dict, "verifier_options": dict, "case": dict}
"""Key of a stored row -> type of its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A prompt as a row."""

    index: int
    """Its place in the split."""
    prompt: Prompt
    messages: list[dict[str, Any]]
    """Its chat, all content in parts: {"type": "text", "text": ...}, and {"type": "image"} or {"type": "video"} for each of
    `images` and `videos` in their order."""
    images: Sequence[Any]
    """Paths of JPEG files, and other images decoded as mmrl decodes them: upright, on white, in RGB."""
    videos: Sequence[Any]
    """`mmrl.api.media.clips.Clip` or `VideoFrames`."""
    stored: str
    """What scoring a completion needs, as JSON: see `read_stored`."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a row stores for scoring its completions."""

    task: str
    metric: str
    """Id of the verifier that evaluates the task."""
    verifiers: Mapping[str, float]
    verifier_options: Mapping[str, Mapping[str, Any]]
    case: Case
    """The case without a completion."""
    judge: str
    """The same for rows that the same judge scores."""
    opening: str = ""
    """What the chat template writes of each answer, and the trainer's completions lack."""

    def completed(self, completion: str, tokens: int | None = None, images: Sequence[Any] = (), truncated: bool = False) -> Case:
        """The case of a completion. tokens: their number, if it is known. images: the row's images, if they aren't stored.
        truncated: it was cut off."""
        completion = opened(completion, self.opening)
        case = replace(self.case, completion=completion)
        if truncated:
            case = replace(case, status=Status.TRUNCATED_LENGTH)
        if images and not case.media:
            case = replace(case, media=tuple(images))
        return case if tokens is None else with_turns(case, [make_turn(completion, tokens)])


def opened(completion: str, opening: str) -> str:
    """A completion with what the chat template has written of it, unless it begins with thinking already."""
    return completion if completion.lstrip().startswith("<think>") else f"{opening}{completion}"


def rows(
    task: OpenTask, split: str = "train", seed: int = 0, n: int | None = None, images: bool | None = None, opening: str = ""
) -> Iterator[Row]:
    """The first n prompts of a split as rows, or all; those that can't be read are left out with a warning.

    images: store the images for scoring, by default if a verifier reads them. opening: see `Stored`. Raises UserError for a task
    that acts in a simulator or has sounds, and for an answer that is no plain data."""
    if task.acts:
        raise UserError(f"task {task.id!r} acts in a simulator, and its prompts have no text: it can't be rows of a data set")
    with_images = task.needs_images if images is None else images
    own = {"task": task.id, "metric": task.metric, "verifiers": dict(task.verifiers)}
    own |= {"verifier_options": {name: dict(of) for name, of in task.verifier_options.items()}, "opening": opening}
    for index, prompt in itertools.islice(task.prompts(split, seed).items(), n):
        if prompt.sounds:
            raise UserError(f"task {task.id!r} has sounds, which these forms can't hold: train it in mmrl")
        stored = json.dumps({**own, "case": case_to_json(task.case(prompt, ""), with_images)})
        shown = [_image(image) for image in prompt.images]
        yield Row(index=index, prompt=prompt, messages=_emptied(prompt), images=shown, videos=prompt.videos, stored=stored)


def refuse_held_out(task: OpenTask, split: str) -> None:
    """Raise UserError for a split that is only for evaluation, in what another trainer trains on."""
    if split in task.task.held_out:
        raise UserError(f"task {task.id!r}: its split {split!r} is only for evaluation: train on another")


@functools.lru_cache(maxsize=STORED)
def read_stored(text: str) -> Stored:
    """A row's `stored`. Raises UserError for text that is none."""
    try:
        row = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"what a row stores for mmrl is not JSON ({error}): export the data set again") from None
    if not isinstance(row, dict) or any(not isinstance(row.get(key), kind) for key, kind in KEYS.items()):
        raise UserError(f"what a row stores for mmrl lacks one of {', '.join(KEYS)}: export the data set again")
    where = f"a row of task {row['task']!r}"
    case, judge = case_from_json(row["case"], where), json.dumps([row["verifiers"], row["verifier_options"]], sort_keys=True)
    return Stored(row["task"], row["metric"], row["verifiers"], row["verifier_options"], case, judge, str(row.get("opening", "")))


def image_bytes(image: Any) -> bytes:
    """A row's image as the bytes of a file: a JPEG's own, PNG otherwise."""
    if isinstance(image, str):
        return Path(image).read_bytes()
    image.save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


def video_file(video: Any, where: str, names: Mapping[str, str] = {}) -> dict[str, Any]:
    """A row's video as {"video": path}, and those of its options that it has.

    names: option of `Clip` -> its key. where: for the message. Raises UserError for frames that are no file, and for options
    without a key."""
    if not isinstance(video, Clip):
        raise UserError(f"{where}: its video is made of frames and is no file, which this form can't hold: train it in mmrl")
    default = Clip(path=video.path)
    given = [f.name for f in fields(Clip) if f.name != "path" and getattr(video, f.name) != getattr(default, f.name)]
    if lost := [name for name in given if name not in names]:
        raise UserError(f"{where}: its video is a selection of frames ({lost[0]}), which this form can't hold: train it in mmrl")
    return {"video": video.path, **{names[name]: getattr(video, name) for name in given}}


def with_places(messages: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, str]]:
    """A row's messages as texts, with <image> and <video> in the place of media. where: for the message. Raises UserError for a
    text that has such a place in it already."""

    def text(part: Mapping[str, Any]) -> str:
        if part["type"] != "text":
            return f"<{part['type']}>"
        if found := next((place for place in ("<image>", "<video>", "<audio>") if place in part["text"]), ""):
            raise UserError(f"{where}: its text contains {found}, which stands for media in this form: reword it")
        return str(part["text"])

    return [{"role": m["role"], "content": "".join(map(text, m["content"]))} for m in messages]


def _image(image: Any) -> Any:
    """An image that other readers decode to the same pixels. A JPEG is no smaller in another format; it may lie on its side."""
    if isinstance(image, str | Path) and Path(image).suffix.lower() in (".jpg", ".jpeg"):
        from PIL import Image

        with Image.open(image) as opened:
            if opened.mode in ("RGB", "L") and opened.getexif().get(0x0112, 1) == 1:
                return str(image)
    return load_image(image)


def _emptied(prompt: Prompt) -> list[dict[str, Any]]:
    """The messages, with places for images and videos."""

    def part(p: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "text", "text": p["text"]} if p["type"] == "text" else {"type": p["type"]}

    def parts(content: Any) -> list[dict[str, Any]]:
        return [{"type": "text", "text": content}] if isinstance(content, str) else [part(p) for p in content]

    return [{"role": m["role"], "content": parts(m["content"])} for m in prompt.messages]

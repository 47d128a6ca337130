"""Prompts as rows of another trainer's data set, and the scores of completions of such rows."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmrl import Case, OpenTask, Prompt, Score, Scoring, UserError
from mmrl.api.cases import case_from_json, case_to_json, make_turn, with_turns
from mmrl.api.media.images import load_image

CASES = 4096
"""Rows whose cases are kept: a group's completions share one."""


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
    case: str
    """The JSON form of its case without a completion (docs/interop.md), from which a completion is scored."""


def rows(task: OpenTask, split: str = "train", seed: int = 0, n: int | None = None, images: bool | None = None) -> Iterator[Row]:
    """The first n prompts of a split as rows, or all; those that can't be read are left out with a warning.

    images: store the images in the case, by default if a verifier reads them. Raises UserError for a task that acts in a
    simulator."""
    if task.acts:
        raise UserError(f"task {task.id!r} acts in a simulator, and its prompts have no text: it can't be rows of a data set")
    with_images = task.needs_images if images is None else images
    for index, prompt in itertools.islice(task.prompts(split, seed).items(), n):
        case = json.dumps(case_to_json(task.case(prompt, ""), with_images))
        yield Row(
            index=index,
            prompt=prompt,
            messages=_emptied(prompt),
            images=[_image(i) for i in prompt.images],
            videos=prompt.videos,
            case=case,
        )


def _image(image: Any) -> Any:
    """An image that other readers decode to the same pixels. A JPEG has no transparency, and is no smaller in another format."""
    if isinstance(image, str | Path) and Path(image).suffix.lower() in (".jpg", ".jpeg"):
        return str(image)
    return load_image(image)


def _emptied(prompt: Prompt) -> list[dict[str, Any]]:
    """The messages, with places for images and videos."""

    def part(p: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "text", "text": p["text"]} if p["type"] == "text" else {"type": p["type"]}

    def parts(content: Any) -> list[dict[str, Any]]:
        return [{"type": "text", "text": content}] if isinstance(content, str) else [part(p) for p in content]

    return [{"role": m["role"], "content": parts(m["content"])} for m in prompt.messages]


@functools.lru_cache(maxsize=CASES)
def stored_case(text: str) -> Case:
    """The case of a row's JSON. Raises UserError for text that is none."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"a row's case is not JSON ({error}): export the data set again") from None
    return case_from_json(row, "a row's case")


def completed(text: str, completion: str, tokens: int | None = None, images: Sequence[Any] = (), turns: bool = False) -> Case:
    """The case of a completion of a row. tokens: their number, if it is known. images: the row's images, if they aren't in the
    case. turns: with its one turn, for verifiers that read turns."""
    case = replace(stored_case(text), completion=completion)
    if images and not case.media:
        case = replace(case, media=tuple(images))
    return with_turns(case, [make_turn(completion, tokens)]) if turns and tokens is not None else case


def share_of_missing(scores: Sequence[Score]) -> float:
    """The share of scores that are missing, 0 to 1."""
    return sum(score.failed for score in scores) / max(len(scores), 1)


def means(scoring: Scoring, scores: Sequence[Score]) -> dict[str, float]:
    """The mean of each verifier over the scores that aren't missing; nothing for a verifier without one."""
    found = {name: [s.parts[name] for s in scores if name in s.parts] for name in scoring.verifiers}
    return {name: sum(values) / len(values) for name, values in found.items() if values}

"""Rows of rollouts for the run folder: plain data, with images, videos and sounds still to be stored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from mmrl.api.errors import plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.tasks import overlays
from mmrl.api.types import Message, Prompt, Rollout, Score
from mmrl.run_folder import webp

VIEW_PIXELS = 512
"""Longest side of stored images; larger ones are scaled down."""
MEDIA = ("image", "video", "audio")
"""Types of message parts that are stored as files."""
DRAWN_PIXELS = 1600
"""Longest side of images that a task draws, such as all screens of an episode."""


def select_rollouts(rollouts: Sequence[Rollout], taught: Sequence[bool], limit: int) -> list[int]:
    """The indices of rollouts to record, at most `limit`: whole groups of each task in turn, those that teach something first. If
    the first group is too large, its gold completions and its first other rollouts. taught: whether each rollout has a nonzero
    advantage."""
    groups: dict[int, list[int]] = {}
    for n, rollout in enumerate(rollouts):
        groups.setdefault(rollout.group, []).append(n)
    by_task: dict[str, list[list[int]]] = {}
    for group in sorted(groups.values(), key=lambda group: not any(taught[n] for n in group)):
        by_task.setdefault(rollouts[group[0]].prompt.task, []).append(group)
    kept: list[int] = []
    for group in (group for turn in zip_longest(*by_task.values()) for group in turn if group):
        if not kept and len(group) > limit:
            return sorted(sorted(group, key=lambda n: not rollouts[n].is_demonstration)[:limit])
        if len(kept) + len(group) <= limit:
            kept += group
    return kept


def draw_completion(tasks: Mapping[str, Task], rollout: Rollout) -> Any:
    """The image that a rollout's task draws of it, or None. tasks: label -> task."""
    task = tasks[rollout.prompt.task]
    own = "draw_completion" if type(task).draw_episode is Task.draw_episode else "draw_episode"
    with plugin_errors(f"task {rollout.prompt.task!r}: {own}()"):
        return task.draw_episode(rollout)


def overlays_of(tasks: Mapping[str, Task], rollout: Rollout) -> list[dict[str, Any]]:
    """The overlays of the images of a rollout's prompt, from its task, as plain data. tasks: label -> task."""
    if not rollout.prompt.messages:  # a simulator's images are not in the prompt
        return []
    task = tasks[rollout.prompt.task]
    own = "overlays" if type(task).episode_overlays is Task.episode_overlays else "episode_overlays"
    with plugin_errors(f"task {rollout.prompt.task!r}: {own}()"):
        return overlays.to_json(task.episode_overlays(rollout))


def has_places(answer: Any, marks: Iterable[overlays.Overlay]) -> bool:
    """Whether an answer has coordinates on the prompt's images: it is no text or number, and the ground truth is marked there.
    Its own coordinates are the task's, often pixels of the original image; the gold completion has those of the prompt."""
    return isinstance(answer, Mapping | list | tuple) and any(
        mark.source == "true" and mark.kind in ("box", "point", "path") for mark in marks
    )


def gold_with_places(task: Task, prompt: Prompt) -> str:
    """The gold completion of a prompt whose answer `has_places`, for people; empty for others, and where the task has none."""
    with contextlib.suppress(Exception):  # what only people look at must not end a run
        if prompt.messages and has_places(prompt.answer, task.overlays(prompt, "")):
            return task.gold(prompt)
    return ""


def rollout_row(
    rollout: Rollout,
    score: Score,
    advantage: float | None,
    drawing: Any = None,
    overlays: Sequence[Mapping[str, Any]] = (),
    gold: str = "",
) -> dict[str, Any]:
    """The row of a rollout. advantage: None in a stage that has none, where the row has the `return` instead. drawing: the image
    that its task draws. overlays: overlays of the prompt's images. gold: see `gold_with_places`."""
    prompt = rollout.prompt
    reward = None if score.value is None else score.value + rollout.environment_reward
    return {
        "task": prompt.task,
        "prompt_id": prompt.id,
        "group": rollout.group,
        "messages": _shown(rollout),
        "answer": prompt.answer,
        **({"gold": gold} if gold else {}),
        "completion": rollout.summary,
        "source": "gold" if rollout.is_demonstration else "hint" if rollout.off_policy else "policy",
        "tokens": rollout.length,
        "policy_versions": [version for version, _ in rollout.token_versions],
        "status": rollout.status,
        "score": score.as_json(),
        "reward": reward,
        **({"return": reward} if advantage is None else {"advantage": advantage}),
        **({} if drawing is None else {"drawing": drawing}),
        **({"overlays": list(overlays)} if overlays else {}),
    }


def _shown(rollout: Rollout) -> list[Message]:
    """The rollout's messages; the first contains the video of an episode in a simulator."""
    messages = [*rollout.messages]
    film = webp.trajectory_video(rollout.filmed) if rollout.filmed else None
    if film is not None:
        messages[0] = {**messages[0], "content": [{"type": "video", "video": film}, *messages[0]["content"]]}
    return messages


def store_media(message: Message, keep: Callable[[Any, str], str]) -> dict[str, Any]:
    """A message with paths instead of images, videos and sounds. keep: stores a medium, given its kind, one of `MEDIA`, and
    returns its path."""

    def part(of: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = of["type"]
        return {"type": kind, "path": keep(of[kind], kind)} if kind in MEDIA and kind in of else of

    content = message["content"]
    return {
        "role": message["role"],
        "content": [{"type": "text", "text": content}] if isinstance(content, str) else [part(of) for of in content],
    }


def with_frames(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the decoded frames of its clips, for a process that hasn't decoded them."""

    def seen(part: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**part, "video": webp.clip_video(part["video"])} if part["type"] == "video" and "video" in part else part

    messages = [m if isinstance(m["content"], str) else {**m, "content": [*map(seen, m["content"])]} for m in row["messages"]]
    return {**row, "messages": messages}


def view_medium(medium: Any, kind: str = "image", most: int = VIEW_PIXELS) -> tuple[str, bytes]:
    """("media/<sha>.<suffix>", its bytes) of a medium for people. kind: one of `MEDIA`. most: see `view_png`."""
    if kind == "audio":
        return view_wav(medium)
    return view_webp(webp.clip_video(medium)) if kind == "video" else view_png(medium, most)


def view_wav(sound: Any) -> tuple[str, bytes]:
    """("media/<sha>.wav", its bytes) of the first seconds of a sound; the name is a hash of the samples."""
    from mmrl.api.media.wav import encode_wav

    data = encode_wav(sound)
    return f"media/{_name(data)}.wav", data


def view_png(image: Any, most: int = VIEW_PIXELS) -> tuple[str, bytes]:
    """("media/<sha>.png", its bytes) of a PIL image, a uint8 [H, W, 3] array or a path; the name is a hash of the pixels. most:
    maximal pixels of the longer side."""
    import io

    from PIL import Image

    from mmrl.api.media.images import load_image

    image = Image.fromarray(image) if hasattr(image, "__array_interface__") and hasattr(image, "ndim") else load_image(image)
    if max(image.size) > most:
        image = image.copy()
        image.thumbnail((most, most))
    name = _name(f"{image.size}".encode(), image.tobytes())
    image.save(buffer := io.BytesIO(), "PNG")
    return f"media/{name}.png", buffer.getvalue()


def view_webp(film: webp.Video) -> tuple[str, bytes]:
    """("media/<sha>.webp", its bytes) of a video; the name is a hash of the frames and their times."""
    shape = f"{film.frames_THWC.shape} {film.times_ms}".encode()
    return f"media/{_name(shape, film.frames_THWC.tobytes())}.webp", webp.encode_webp(film)


def _name(*parts: bytes) -> str:
    import hashlib

    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

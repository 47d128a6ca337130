"""What messages hold, as plain values that are equal if the contents are equal: texts, and the content of pictures, videos and
sounds, whatever their paths."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.api.media.clips import Clip, as_clip
from mmrl.api.media.picture_folders import picture_files
from mmrl.api.media.sounds import SoundClip, as_sound

State = tuple[str, str]
"""A state in which a call of a policy began: (what is told of it, a digest of what is shown). Equal ones are the same state."""


def canonical_form(value: Any) -> Any:
    """The value as nested tuples of plain values, which are equal if the contents are equal."""
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return ("map", tuple(sorted(((repr(k), canonical_form(v)) for k, v in value.items()), key=lambda item: item[0])))
    if isinstance(value, list | tuple):
        return tuple(canonical_form(v) for v in value)
    if isinstance(value, set | frozenset):
        return ("set", tuple(sorted(repr(canonical_form(v)) for v in value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple((f.name, canonical_form(getattr(value, f.name))) for f in dataclasses.fields(value))
    if hasattr(value, "tobytes"):  # a numpy array or scalar, or a PIL image: of one that was opened, the class says its format
        if getattr(value, "palette", None) is not None:  # its bytes are places in a palette
            value = value.convert("RGBA")
        kind, size = getattr(value, "mode", None), getattr(value, "size", "")
        if kind is None:
            kind, size = str(getattr(value, "dtype", type(value).__name__)), getattr(value, "shape", size)
        return (kind, str(size), hashlib.sha256(value.tobytes()).hexdigest())
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def form_of_part(part: Mapping[str, Any]) -> Any:
    """The canonical form of a part of a message: a text, or the content of a picture, a video or a sound."""
    seen = {"image": _image, "video": _video, "audio": _sound}.get(part["type"])
    return seen(part[part["type"]]) if seen else canonical_form(part)


def text_and_media(messages: Sequence[Mapping[str, Any]]) -> State:
    """(the texts of messages, a digest of their pictures, videos and sounds, which is empty without any). Messages that say and
    show the same have equal ones: a picture must be equal in each pixel."""
    texts, media = [], []
    for message in messages:
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                texts.append(part["text"])
            else:
                media.append((part["type"], form_of_part(part)))
    return "\n".join(texts), hashlib.sha256(repr(media).encode()).hexdigest() if media else ""


def _image(image: Any) -> Any:
    return hashlib.sha256(Path(image).read_bytes()).hexdigest() if isinstance(image, str | Path) else canonical_form(image)


def _video(video: Any) -> Any:
    """A clip by the content of its file, or of its folder's pictures, whatever its path."""
    video = as_clip(video)
    if not isinstance(video, Clip):
        return canonical_form(video)
    digest = hashlib.sha256()
    for path in [video.path] if video.rate is None else picture_files(video.path):
        digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
    return (digest.hexdigest(), canonical_form(dataclasses.replace(video, path="")))


def _sound(sound: Any) -> Any:
    """A clip by the content of its file, whatever its path."""
    sound = as_sound(sound)
    if not isinstance(sound, SoundClip):
        return canonical_form(sound)
    return (hashlib.sha256(Path(sound.path).read_bytes()).hexdigest(), canonical_form(dataclasses.replace(sound, path="")))

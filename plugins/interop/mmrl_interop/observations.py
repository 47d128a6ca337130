"""What another program's environment shows, as chat messages. Nothing is fetched: images are data URLs."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from mmrl import Message
from mmrl.api.media.images import load_image


def messages_of(observation: Any) -> list[Message]:
    """What the policy reads of an observation: its `messages` in OpenAI's form, or its other fields as text. Raises ValueError
    for what is neither, and UserError for an image that can't be decoded."""
    if not isinstance(observation, Mapping):
        raise ValueError(f"an observation must be an object, not {observation!r:.60}")
    messages = observation.get("messages")
    if messages is None:
        fields = {k: v for k, v in observation.items() if k not in ("done", "reward", "metadata")}
        return [{"role": "user", "content": [{"type": "text", "text": json.dumps(fields, ensure_ascii=False)}]}]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"its messages are {messages!r:.60}")
    return [_message(message) for message in messages]


def _message(message: Any) -> Message:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
    if not isinstance(role, str) or not isinstance(content, str | list):
        raise ValueError(f"a message is {message!r:.60}")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else [_part(part) for part in content]
    return {"role": role, "content": parts}


def _part(part: Any) -> Mapping[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    url = (part.get("image_url") or {}).get("url") if kind == "image_url" else None
    if not isinstance(url, str) or not url.startswith("data:image/"):
        raise ValueError(f"a part of a message is {part!r:.60}")
    return {"type": "image", "image": load_image(base64.b64decode(url.partition(",")[2]), name="of the environment")}

"""Add text to prompts."""

from __future__ import annotations

from dataclasses import replace

from mmrl.api.errors import PluginError
from mmrl.api.types import Prompt


def append_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text at the end of its last user message. Raises PluginError if it has no user message."""
    messages = list(prompt.messages)
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    if last < 0:
        raise PluginError(f"task {prompt.task!r}: prompt {prompt.id!r} has no user message to which text can be added")
    content = messages[last]["content"]
    added = content + text if isinstance(content, str) else [*content, {"type": "text", "text": text}]
    messages[last] = {**messages[last], "content": added}
    return replace(prompt, messages=messages)

"""The words in which a reward model is asked, the same in its training and in its use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl.api.types import Message

YES, NO = "yes", "no"


def ask_right(messages: Sequence[Message], answer: str) -> list[Message]:
    """The conversation with the question whether an answer is right, in its last turn."""
    return _with(messages, f"\n\nProposed answer:\n{answer}\n\nIs the proposed answer right? Answer yes or no.")


def ask_better(messages: Sequence[Message], first: str, second: str) -> list[Message]:
    """The conversation with the question which of two answers is better, in its last turn."""
    return _with(messages, f"\n\nAnswer 1:\n{first}\n\nAnswer 2:\n{second}\n\nWhich answer is better? Answer 1 or 2.")


def _with(messages: Sequence[Message], text: str) -> list[Message]:
    *earlier, last = messages
    content: Any = last["content"]
    if isinstance(content, str):
        return [*earlier, {**last, "content": content + text}]
    *parts, end = content
    if end["type"] == "text":
        return [*earlier, {**last, "content": [*parts, {**end, "text": end["text"] + text}]}]
    return [*earlier, {**last, "content": [*content, {"type": "text", "text": text.lstrip()}]}]

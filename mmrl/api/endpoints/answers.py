"""What an endpoint answered, read from the body of its reply. The body is untrusted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import is_finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question."""

    text: str
    finished: bool
    """False if the limit of tokens cut it off."""
    num_tokens: int
    """Tokens of the answer, hidden thoughts among them, as the endpoint counts them; 0 if it doesn't say."""


class NoAnswer(Exception):
    """A question has no answer: the endpoint failed, or the budget is used up. The message is one line."""

    used = 0
    """Tokens of question and answer all the same, as the endpoint counts them."""


def read_reply(content: bytes) -> tuple[Answer, int]:
    """(the answer, tokens of question and answer) of a reply's body. Raises NoAnswer if it is no chat completion with a text."""
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        raise NoAnswer(f"its reply is no JSON: {content[:60]!r}") from None
    choice = _first(reply.get("choices")) if isinstance(reply, dict) else {}
    usage = reply.get("usage") if isinstance(reply, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    used, ended = _count(usage, "total_tokens"), choice.get("finish_reason")
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    text, refusal = message.get("content"), message.get("refusal")
    if isinstance(text, str) and ended != "content_filter":
        return Answer(text=text, finished=ended != "length", num_tokens=_count(usage, "completion_tokens")), used
    why = f": {refusal:.100}" if isinstance(refusal, str) else ""
    if ended == "length":
        why = ": the limit of tokens cut it off before one: raise max_tokens"
    filtered = "a filter of the endpoint removed the answer" if isinstance(text, str) else ""
    error = NoAnswer(filtered or f"its reply holds no answer{why}")
    error.used = used
    raise error


def _first(choices: Any) -> dict[str, Any]:
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return int(value) if is_finite(value) and 0 <= value < 2**40 else 0

"""Models behind endpoints that a task asks: made from an option of the task, and what they answer to a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Message, UserError
from mmrl.api.endpoints.answers import NoAnswer
from mmrl.api.endpoints.client import ChatEndpoint, Question
from mmrl.api.endpoints.messages import ChatEncoder

ANSWER = 512
"""Maximum of tokens of an answer."""


def endpoint_of(option: str, options: Mapping[str, Any]) -> ChatEndpoint:
    """The endpoint of an option that is a table. option: its name, for messages. options: those of
    `mmrl.api.endpoints.client.ChatEndpoint`. Raises UserError for others."""
    try:
        return ChatEndpoint(**options)
    except TypeError as error:
        raise UserError(f"{option}: {str(error).partition('()')[2].strip() or error}: see the options of an endpoint") from None


def answer_of(endpoint: ChatEndpoint, messages: Sequence[Message], option: str, about: str) -> str:
    """The answer to a conversation, sampled at temperature 0. about: the instruction, for messages. Raises UserError if the
    endpoint has none."""
    sent, _ = ChatEncoder()(messages)
    (answer,) = endpoint.ask([Question(messages=sent, max_tokens=ANSWER)])
    if isinstance(answer, NoAnswer):
        raise UserError(f"{option}: no answer for {about!r:.100}: {answer}")
    return answer.text

"""Models behind endpoints that a task asks: made from an option of the task, and what they answer to a conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Message, UserError
from mmrl.api.endpoints.answers import NoAnswer
from mmrl.api.endpoints.client import ChatEndpoint, Question
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.errors import did_you_mean

ANSWER = 512
"""Maximum of tokens of an answer."""


def endpoint_of(option: str, options: Mapping[str, Any]) -> ChatEndpoint:
    """The endpoint of an option that is a table. option: its name, for messages. options: those of
    `mmrl.api.endpoints.client.ChatEndpoint`. Raises UserError for others."""
    known = [field.name for field in dataclasses.fields(ChatEndpoint) if field.init]
    for name in options:
        if name not in known:
            raise UserError(f"{option}: an endpoint has no option {name!r}.{did_you_mean(name, known)} It has {', '.join(known)}")
    if "model" not in options:
        raise UserError(f"{option}: model is missing: name the model that the endpoint serves")
    return ChatEndpoint(**options)


def answer_of(endpoint: ChatEndpoint, messages: Sequence[Message], option: str, about: str) -> str:
    """The answer to a conversation, sampled at temperature 0. about: the instruction, for messages. Raises UserError if the
    endpoint has none."""
    sent, _ = ChatEncoder()(messages)
    (answer,) = endpoint.ask([Question(messages=sent, max_tokens=ANSWER)])
    if isinstance(answer, NoAnswer):
        raise UserError(f"{option}: no answer for {about!r:.100}: {answer}")
    return answer.text

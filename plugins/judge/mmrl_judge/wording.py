"""The words in which a reward model is asked, the same in its training and in its use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import UserError
from mmrl.api.tasks.option_checks import check_type
from mmrl.api.types import Message

YES, NO = "yes", "no"


RIGHT = "Is this answer right? Answer yes or no."
BETTER = "\n\nAnswer 1:\n{first}\n\nAnswer 2:\n{second}\n\nWhich answer is better? Answer 1 or 2."
FIELD = re.compile(r"\{(first|second)\}")


def ask_right(messages: Sequence[Message], answer: str, question: str = RIGHT) -> list[Message]:
    """The conversation with the answer, and then the question whether it is right."""
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": question}]


def ask_better(messages: Sequence[Message], first: str, second: str, question: str = BETTER) -> list[Message]:
    """The conversation with the question which of two answers is better, in its last turn. question: contains {first} and
    {second}."""
    return _with(messages, _filled(question, {"first": first, "second": second}))


def check_question(question: str, *fields: str) -> None:
    """Raise UserError for a question that is blank, or doesn't contain each of these fields once."""
    check_type("question", question, str)
    if not question.strip():
        raise UserError("question is blank: leave it out, or write one")
    for field in fields:
        if question.count("{" + field + "}") != 1:
            raise UserError(f"question = {question!r:.60} must contain {{{field}}} once")


def _filled(question: str, fields: Mapping[str, str]) -> str:
    """The question with its fields. Texts that are filled in are not searched for fields."""
    return FIELD.sub(lambda match: fields.get(match[1], match[0]), question)


def _with(messages: Sequence[Message], text: str) -> list[Message]:
    *earlier, last = messages
    content: Any = last["content"]
    if isinstance(content, str):
        return [*earlier, {**last, "content": content + text}]
    *parts, end = content
    if end["type"] == "text":
        return [*earlier, {**last, "content": [*parts, {**end, "text": end["text"] + text}]}]
    return [*earlier, {**last, "content": [*content, {"type": "text", "text": text.lstrip()}]}]

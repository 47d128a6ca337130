"""What an endpoint answered, read from the body of its reply. The body is untrusted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import is_finite
from mmrl.api.verifiers.parse import thought, with_thinking

REASONING = ("reasoning_content", "reasoning")
"""Fields of a message with what the model thought: of SGLang, DeepSeek and earlier versions of vLLM; of vLLM and OpenRouter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a question."""

    text: str
    """Without what the model thought before it."""
    thinking: str = ""
    """What it thought, where the endpoint tells: in a field of its own, or before `</think>`, as without a reasoning parser."""
    finished: bool
    """False if the limit of tokens cut it off."""
    num_tokens: int
    """Tokens of the answer, hidden thoughts among them, as the endpoint counts them; 0 if it doesn't say."""

    @property
    def whole(self) -> str:
        """The text with the thinking before it, as a policy's completions have it. Thinking that was cut off doesn't end."""
        return with_thinking(self.thinking, self.text, self.finished)


class NoAnswer(Exception):
    """A question has no answer: the endpoint failed, or the budget is used up. The message is one line."""

    used = 0
    """Tokens of question and answer all the same, as the endpoint counts them."""
    thought: Answer | None = None
    """What came all the same, where the model has thought and not answered."""


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
    told = next((message[name] for name in REASONING if isinstance(message.get(name), str) and message[name]), "")
    if text is None and told and not refusal:
        text = ""
    answer = None
    if isinstance(text, str) and ended != "content_filter":
        plain = told or text.lstrip().startswith("{")  # JSON, such as a verdict, may quote the sign
        thinking, said = (told, text) if plain else thought(text)
        said = said.lstrip("\n") if thinking else said
        number = _count(usage, "completion_tokens")
        answer = Answer(text=said, thinking=thinking, finished=ended != "length", num_tokens=number)
        if said.strip() or not thinking:
            return answer, used
    why = f": {refusal:.100}" if isinstance(refusal, str) else ""
    if ended == "length":
        why = ": the limit of tokens cut it off before one: raise max_tokens"
    filtered = "a filter of the endpoint removed the answer" if isinstance(text, str) and not answer else ""
    error = NoAnswer(filtered or f"its reply holds no answer{why}")
    error.used, error.thought = used, answer
    raise error


def _first(choices: Any) -> dict[str, Any]:
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return int(value) if is_finite(value) and 0 <= value < 2**40 else 0

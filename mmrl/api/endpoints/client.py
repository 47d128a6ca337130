"""A client of OpenAI-compatible endpoints, such as vLLM, SGLang, OpenAI and OpenRouter.

It asks many questions concurrently, retries what may pass (time-outs, 408, 409, 429, 5xx; with exponential backoff, or as long
as the endpoint's `Retry-After` says), keeps to a budget, and keeps answers on disk. What comes back is untrusted: the size of a
reply is limited, and a reply that holds no answer is an error and never an empty answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mmrl.api.endpoints.answers import Answer, NoAnswer, read_reply
from mmrl.api.endpoints.cache import AnswerCache
from mmrl.api.endpoints.options import Count, EndpointSettings, Seconds
from mmrl.api.errors import UserError

if TYPE_CHECKING:
    import openai


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request: messages in OpenAI's form (see `mmrl.api.endpoints.messages`) and how to sample the answer."""

    messages: Sequence[Mapping[str, Any]]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    """Passed on; few endpoints promise the same answer for the same seed."""


@dataclass(kw_only=True)
class ChatEndpoint(EndpointSettings):
    """An endpoint and a model that it serves. Questions of one call are asked concurrently; calls may come from several threads.

    Raises UserError for settings that can't work, and if the package `openai` is missing.
    """

    model: str
    concurrency: Count = 8
    cache: str | Path | None = None  # type: ignore[assignment]  # Python may give a path
    timeout_s: Seconds = 60.0
    """Seconds that one request may take."""

    calls: int = field(default=0, init=False)
    """Questions that were asked so far, cached ones not counted."""
    total_tokens: int = field(default=0, init=False)
    """Tokens used so far, as the endpoint counts them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"base_url = {self.base_url!r:.100} is no address: write one such as http://localhost:8000/v1")
        self.host = parts.netloc.rpartition("@")[2]
        if not self.model:
            raise UserError("the endpoint's model has no name: set model to one that it serves")
        try:
            import openai  # noqa: F401
        except ImportError as error:
            raise UserError(f'an endpoint needs the package openai ({error}): pip install "multimodal-rl[endpoint]"') from None
        self._key = os.environ.get(self.key_variable, "")
        if not self._key and parts.scheme == "https":
            raise UserError(f"no key for {self.host}: set the environment variable {self.key_variable}")
        self._answers = AnswerCache(Path(self.cache).expanduser()) if self.cache else None
        self._lock = threading.Lock()

    def ask(self, questions: Sequence[Question]) -> list[Answer | NoAnswer]:
        """The answers in the order of the questions; an error in place of each that has none."""
        if not questions:
            return []
        return asyncio.run(self._ask_all(questions))

    async def _ask_all(self, questions: Sequence[Question]) -> list[Answer | NoAnswer]:
        from mmrl.api.endpoints.requests import open_client

        slots = asyncio.Semaphore(self.concurrency)
        async with open_client(self.base_url, self._key, self.concurrency, self.retries, self.timeout_s) as client:
            return await asyncio.gather(*(self._ask(client, slots, question) for question in questions))

    async def _ask(self, client: openai.AsyncOpenAI, slots: asyncio.Semaphore, question: Question) -> Answer | NoAnswer:
        from mmrl.api.endpoints.requests import send

        body = self._body(question)
        if self._answers and (kept := self._answers.get(self.base_url, body)):
            return Answer(**kept)
        async with slots:
            if exhausted := self._spend_call():
                return NoAnswer(exhausted)
            try:
                answer, used = read_reply(await send(client, body))
            except NoAnswer as error:
                self._spend_tokens(error.used)
                lost = NoAnswer(f"{self.host}: {error}")
                lost.thought = error.thought
                return lost
        self._spend_tokens(used)
        if self._answers:
            self._answers.put(self.base_url, body, dataclasses.asdict(answer))
        return answer

    def _spend_tokens(self, used: int) -> None:
        with self._lock:
            self.total_tokens += used

    def _spend_call(self) -> str:
        """Count a call; the reason if the budget doesn't allow it."""
        with self._lock:
            if self.max_calls is not None and self.calls >= self.max_calls:
                return f"the budget of max_calls = {self.max_calls} is used up"
            if self.max_total_tokens is not None and self.total_tokens >= self.max_total_tokens:
                return f"the budget of max_total_tokens = {self.max_total_tokens} is used up"
            self.calls += 1
        return ""

    def _body(self, question: Question) -> dict[str, Any]:
        sampled = {"temperature": question.temperature, "max_tokens": question.max_tokens}
        sampled |= {"top_p": question.top_p} if question.top_p != 1 else {}
        sampled |= {"seed": question.seed} if question.seed is not None else {}
        fields = {name: value for name, value in sampled.items() if name not in self.omit}
        body = {"model": self.model, "messages": list(question.messages), **fields}
        return body | ({"extra_body": dict(self.extra)} if self.extra else {})

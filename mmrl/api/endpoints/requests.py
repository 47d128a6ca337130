"""Requests to an endpoint by OpenAI's own client, with a limit on the size of replies."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import openai

from mmrl.api.endpoints.answers import NoAnswer
from mmrl.api.errors import shorten

MAX_REPLY = 8 * 2**20
"""Largest number of bytes of a reply."""
LONGEST_REASON = 300


def open_client(base_url: str, key: str, concurrency: int, retries: int, timeout_s: float) -> openai.AsyncOpenAI:
    """A client, to be closed by the caller. It waits between tries exponentially, or as long as `Retry-After` says."""
    limits = httpx2.Limits(max_connections=concurrency)
    transport = LimitedTransport(httpx2.AsyncHTTPTransport(limits=limits, verify=ssl_context()))
    return openai.AsyncOpenAI(
        api_key=key or "none",
        base_url=base_url,
        timeout=timeout_s,
        max_retries=retries,
        http_client=httpx2.AsyncClient(transport=transport, timeout=timeout_s),
    )


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """The certificates that are trusted; they are read once, as this takes longer than a request."""
    return httpx2.create_ssl_context()


async def send(client: openai.AsyncOpenAI, body: Mapping[str, Any]) -> bytes:
    """The body of the reply. Raises NoAnswer with the reason."""
    try:
        # raw: the client makes objects of any JSON without checking it
        reply = await client.chat.completions.with_raw_response.create(**body)
        return reply.http_response.content
    except (openai.OpenAIError, httpx2.HTTPError, ValueError) as error:
        raise NoAnswer(reason(error)) from error


def reason(error: BaseException) -> str:
    """Why a request failed, in one line: the status and the endpoint's own words, if there are any."""
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    cause = error if status or error.__cause__ is None else error.__cause__
    said = body.get("message") if isinstance(body, dict) else None
    words = " ".join(said.split()) if isinstance(said, str) else shorten(cause)
    what = f"status {status}" if status else type(cause).__name__
    return f"{what}: {words}"[:LONGEST_REASON] if words else what


class LimitedTransport(httpx2.AsyncBaseTransport):
    """Stops reading a reply of more than `MAX_REPLY` bytes."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self.inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self.inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = LimitedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


class LimitedStream(httpx2.AsyncByteStream):
    """The bytes of a reply as they come over the wire."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self.stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self.stream:
            size += len(piece)
            if size > MAX_REPLY:
                raise httpx2.DecodingError(f"its reply is longer than {MAX_REPLY:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self.stream.aclose()

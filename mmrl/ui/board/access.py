"""Access to the board: requests from this machine, or with the token. Security headers forbid foreign scripts and requests."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "mmrl-board"
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AccessMiddleware:
    """Middleware that refuses unauthorised requests. Without a token it accepts only a loopback Host header, which prevents DNS
    rebinding; with a token it accepts the field `?token=`, which it replaces by a cookie, or that cookie."""

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        answer: ASGIApp | None = self._refusal(scope)
        await (answer or self.app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("the board is read-only\n", 405)
        if not self.token:
            if is_loopback(_host(headers.get("host", ""))):
                return None
            return PlainTextResponse("the board accepts requests from this machine only: open it as localhost\n", 403)
        if _same(_cookie(headers.get("cookie", "")), self.token):
            return None
        fields = parse_qsl(scope["query_string"].decode("latin-1"))
        if not any(name == "token" and _same(value, self.token) for name, value in fields):
            return PlainTextResponse("the board needs its token: open the address that `mmrl board` printed\n", 403)
        rest = urlencode([(name, value) for name, value in fields if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # two slashes would redirect to another host
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
        return answer


def _host(header: str) -> str:
    """The host of a Host header: `localhost:8420` -> `localhost`, `[::1]:8420` -> `::1`; empty for an invalid header."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z.-]+))(?::\d{1,5})?", header)
    return (match[1] or match[2]) if match else ""


def _cookie(header: str) -> str:
    """The board's cookie in a Cookie header; empty without one."""
    pairs = (cookie.strip().partition("=") for cookie in header.split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())

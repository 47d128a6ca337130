"""Who may see the board: browsers on this machine, or whoever has the token. Nothing that a page holds may run or call home."""

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
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Middleware. Without a token only requests that name this machine are answered, so that a page elsewhere can't reach the
    board under a name of its own; with one, only those that bring it: as `?token=`, which is made a cookie, or as that cookie."""

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
            return PlainTextResponse("the board is only read\n", 405)
        if not self.token:
            if is_loopback(_host(headers.get("host", ""))):
                return None
            return PlainTextResponse("the board answers this machine only: open it as localhost\n", 403)
        if _same(_cookie(headers.get("cookie", "")), self.token):
            return None
        fields = parse_qsl(scope["query_string"].decode("latin-1"))
        if not any(name == "token" and _same(value, self.token) for name, value in fields):
            return PlainTextResponse("the board needs its token: open the address that `mmrl board` printed\n", 403)
        rest = urlencode([(name, value) for name, value in fields if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # with two of them it would be an address elsewhere
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
        return answer


def _host(header: str) -> str:
    """`localhost:8420` -> `localhost`, `[::1]:8420` -> `::1`; empty for what is no such header."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z.-]+))(?::\d{1,5})?", header)
    return (match[1] or match[2]) if match else ""


def _cookie(header: str) -> str:
    """Ours, whatever others of this machine have set."""
    pairs = (one.strip().partition("=") for one in header.split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())

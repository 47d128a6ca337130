"""A proxy on loopback that serves pages under made-up host names to the browser, and refuses all other requests."""

from __future__ import annotations

import contextlib
import functools
import mimetypes
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

SUFFIX = ".mmrl.test"
"""Suffix of host names; the domain `.test` is reserved for tests (RFC 2606)."""
MAX_BYTES = 64 * 2**20
"""Maximum size of one file."""


class Page(NamedTuple):
    body: bytes
    kind: str
    """Its media type."""
    lasting: bool
    """Whether the browser may cache it."""


Give = Callable[[str], Page | None]
"""Decoded path without its leading slash -> the page, or None."""


class Site:
    """The proxy. `host` assigns a host name to a source of pages; only those names are served."""

    def __init__(self) -> None:
        self._hosts: dict[str, Give] = {}
        self.refused: deque[str] = deque(maxlen=1000)
        """Refused requests, newest last."""
        handler = type("Handler", (_Handler,), {"site": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="browser-site", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def host(self, name: str, give: Give) -> str:
        """Serves pages of `give` under the returned address `http://NAME.mmrl.test/`."""
        self._hosts[name + SUFFIX] = give
        return f"http://{name}{SUFFIX}/"

    def drop(self, name: str) -> None:
        self._hosts.pop(name + SUFFIX, None)

    def find(self, url: str) -> Page | None:
        give = self._hosts.get(urlsplit(url).netloc) if self.is_ours(url) else None
        return give(unquote(urlsplit(url).path).lstrip("/")) if give else None

    def is_ours(self, url: str) -> bool:
        parts = urlsplit(url)
        return parts.scheme == "http" and parts.netloc in self._hosts

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing: a browser that dies breaks its connections."""


class _Handler(BaseHTTPRequestHandler):
    site: Site
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            page = self.site.find(self.path)
        except (OSError, ValueError) as error:
            return self._empty(404, repr(error))
        if page is not None:
            self.send_response(200)
            self.send_header("Content-Type", page.kind)
            self.send_header("Content-Length", str(len(page.body)))
            self.send_header("Cache-Control", "max-age=86400, immutable" if page.lasting else "no-store")
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the page navigated away meanwhile
                self.wfile.write(page.body)
        elif self.site.is_ours(self.path):
            self._empty(404)
        else:
            self._refuse()

    def do_POST(self) -> None:
        """Discards a form's data; the browser stays on its page (status 204)."""
        self.close_connection = True
        self._refuse()

    def do_CONNECT(self) -> None:
        self.site.refused.append(self.path)
        self._empty(403)

    do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_POST

    def _refuse(self) -> None:
        """Refuses a request. With status 204, the browser stays on its page."""
        self.site.refused.append(self.path)
        self._empty(204)

    def _empty(self, status: int, why: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Does nothing: the console is for the run's output."""


def folder(root: Path) -> Give:
    """Serves the files under a folder; links and `..` can't lead out of it."""
    root = root.resolve()

    @functools.lru_cache(maxsize=256)
    def read(path: str) -> Page | None:
        file = (root / path).resolve()
        if file.is_dir():
            file = file / "index.html"
        if not file.is_relative_to(root) or not file.is_file() or file.stat().st_size > MAX_BYTES:
            return None
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        return Page(file.read_bytes(), kind, kind != "text/html")

    return read

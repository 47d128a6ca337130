"""Requests to servers of screens, with a deadline and a largest reply, and a pool of servers.

A server is untrusted: what it says is checked, and one that is absent, hangs or answers nonsense loses the episode in one line.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import queue
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

from PIL import Image

from mmrl import EnvironmentFailed, UserError
from mmrl.api.errors import is_finite, shorten

MAX_REPLY = 128 * 2**20
"""Bytes of a reply: AndroidWorld writes a screenshot of 1080 x 2400 pixels as 39 MB of numbers."""
CHUNK = 2**20
DAY = 86_400
"""Seconds."""


class Server:
    """One server, which plays one episode at a time."""

    def __init__(self, address: str, timeout_s: float) -> None:
        """timeout_s: seconds for each request, its reply included."""
        self.address, self.timeout_s = address.rstrip("/"), timeout_s

    def ask(self, path: str, query: Mapping[str, Any] | None = None, body: Any = None, method: str = "GET") -> Any:
        """The JSON of a reply. Raises EnvironmentFailed."""
        content = self.fetch(path, query, body, method)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise self.failed(path, f"answers no JSON: {content[:40]!r}") from None

    def number(self, path: str, key: str, query: Mapping[str, Any]) -> float:
        """A finite number in a reply."""
        found = self.field(path, key, query)
        value = float(found) if isinstance(found, bool) else found
        if not is_finite(value):
            raise self.failed(path, f"says {key} = {found!r:.40}, and that is no number")
        return float(value)

    def field(self, path: str, key: str, query: Mapping[str, Any] | None = None, body: Any = None, method: str = "GET") -> Any:
        """A field of a reply, which must be an object that has it."""
        found = self.ask(path, query, body, method)
        if not isinstance(found, dict) or key not in found:
            raise self.failed(path, f"answers without {key!r}: {found!r:.60}")
        return found[key]

    def picture(self, path: str) -> Image.Image:
        """A reply that is a PNG or JPEG, as RGB."""
        content = self.fetch(path)
        try:
            return Image.open(io.BytesIO(content), formats=("PNG", "JPEG")).convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            raise self.failed(path, f"answers no picture: {content[:40]!r}") from None

    def fetch(self, path: str, query: Mapping[str, Any] | None = None, body: Any = None, method: str = "GET") -> bytes:
        """The bytes of a reply. Raises EnvironmentFailed."""
        url = f"{self.address}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        until, parts, size = time.monotonic() + self.timeout_s, [], 0
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                while part := reply.read1(CHUNK):
                    parts.append(part)
                    size += len(part)
                    if size > MAX_REPLY:
                        raise self.failed(path, f"sends more than {MAX_REPLY:,} bytes")
                    if time.monotonic() > until:
                        raise TimeoutError
        except urllib.error.HTTPError as error:
            said = "no text"
            with error, contextlib.suppress(OSError, http.client.HTTPException):  # its body may never come, or be cut off
                said = error.read(200).decode(errors="replace")
            raise self.failed(path, f"answers {error.code}: {one_line(said)}") from error
        except TimeoutError as error:
            raise self.failed(path, f"didn't answer within {self.timeout_s:g} s") from error
        except (OSError, ValueError) as error:  # a URLError around a timeout is an OSError, too
            why = getattr(error, "reason", error)
            late = f"didn't answer within {self.timeout_s:g} s"
            raise self.failed(path, late if isinstance(why, TimeoutError) else one_line(why)) from error
        except http.client.HTTPException as error:  # another protocol, such as VNC's, or a reply that is cut off
            raise self.failed(path, f"answers no HTTP: {one_line(repr(error))}") from error
        return b"".join(parts)

    def failed(self, path: str, why: str) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self.address}{path} {why}")


class Pool:
    """Servers that are free. An episode that finds none waits for one."""

    def __init__(self, servers: Sequence[Server], wait_s: float) -> None:
        self.servers, self.wait_s = servers, wait_s
        self._free: queue.SimpleQueue[Server] = queue.SimpleQueue()
        for server in servers:
            self._free.put(server)

    def take(self) -> Server:
        """Raises EnvironmentFailed if none becomes free in time."""
        try:
            return self._free.get(timeout=self.wait_s)
        except queue.Empty:
            many = len(self.servers)
            why = (
                f"all {many} servers were busy for {self.wait_s:g} s"
                if many > 1
                else f"the server was busy for {self.wait_s:g} s"
            )
            raise EnvironmentFailed(f"{why}: set generate.batch_size = {many}, the number of servers, or name more") from None

    def give_back(self, server: Server) -> None:
        self._free.put(server)


def one_line(said: object) -> str:
    """Anything as at most 120 characters of one line."""
    return shorten(str(said), 120) or type(said).__name__


def check_seconds(option: str, value: Any) -> None:
    """Raise UserError unless the value is a number of seconds above 0, and a day at most."""
    if not is_finite(value) or not 0 < value <= DAY:
        raise UserError(f"{option} = {value!r:.40} must be a number of seconds above 0, at most {DAY}")


def servers_of(addresses: Sequence[str] | str, timeout_s: float) -> list[Server]:
    """Raises UserError for what are no addresses."""
    if not isinstance(addresses, str | list | tuple) or not addresses:
        raise UserError(f'servers = {addresses!r:.100} names no server: write addresses, such as ["http://localhost:5000"]')
    check_seconds("timeout_s", timeout_s)
    listed = [addresses] if isinstance(addresses, str) else list(addresses)
    for address in listed:
        if not isinstance(address, str) or urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
            raise UserError(f"servers has {address!r:.100}, and that is no address: write one such as http://localhost:5000")
    if len(set(listed)) < len(listed):
        raise UserError("servers names one server twice: each plays one episode at a time")
    return [Server(address, timeout_s) for address in listed]

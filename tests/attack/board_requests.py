"""Requests that no browser sends, to a board that listens on loopback.

An attempt is a request or a few: the board answers in time with a code that fits, and with nothing from outside its folder;
and its memory is bounded and its list of runs is there at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import bounds
from boards import Running, board
from damage import whole
from mmrl.testing.attack import Attempt

SECRET = "t0p-secret-4711"
TOKEN = "tell-nobody-0815"
OUTSIDE = (SECRET, TOKEN, "root:x:0", "from __future__")
"""What is in files beside the runs, in the environment, the system and the code."""
SERVED, REFUSED, LOWER = ("2",), ("4",), ("2", "3", "4")
NOTHING = ("", "4")
"""A connection may be closed without an answer where nothing that was sent is HTTP."""


@dataclass(frozen=True, slots=True)
class Request:
    name: str
    data: bytes
    wanted: tuple[str, ...]
    """Beginnings of fitting codes; "" for a connection that is closed without an answer."""
    ends: bool = False
    """Whether nothing can follow: the board ends a connection whose other side ends it."""


def get(path: str | bytes, wanted: tuple[str, ...], *headers: str, method: str = "GET", host: str = "localhost") -> Request:
    path = path.encode() if isinstance(path, str) else path
    lines = [f"Host: {host}", *headers, "Connection: close"]
    data = method.encode() + b" " + path + b" HTTP/1.1\r\n" + "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return Request(f"{method} {path!r} {' '.join(headers)} {host}"[:100], data, wanted)


# -- paths that lead elsewhere ----------------------------------------------------------------------------------------------

ELSEWHERE = (
    *("../secret.txt", "../secret.png", "../outside", "../../../../../../etc/passwd", "/etc/passwd", "secret.txt", "linked.png"),
    *("rollouts/media/../../../../secret.png", "rollouts/media/linked.png", "rollouts/media/../../../../../../../../etc/passwd"),
    *("checkpoints/secret.png", "episodes/step-000010/../../../../secret.png", "rollouts/media/x.png\0.png", "....//secret.txt"),
    *("file:///etc/passwd", "~/.bashrc", "/proc/self/environ", "../app.py", "access.py", "rollouts/media/" + "a" * 300 + ".png"),
)
"""Files that are there, and are no picture of a run."""
ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "as it is": lambda path: quote(path, safe="/.~:").encode(),
    "percents": lambda path: "".join(f"%{byte:02x}" for byte in path.encode()).encode(),
    "dots": lambda path: quote(path, safe="/").replace(".", "%2e").encode(),
    "twice": lambda path: quote(quote(path, safe="").replace(".", "%2E"), safe="").encode(),
    "backslashes": lambda path: quote(path.replace("/", "\\"), safe="").encode(),
    "long form": lambda path: quote(path, safe="").replace("%2F", "%c0%af").replace(".", "%c0%ae").encode(),
    "wide letters": lambda path: quote(path.replace(".", "．").replace("/", "／"), safe="").encode(),
    "u": lambda path: quote(path, safe="").replace(".", "%u002e").replace("%2F", "%u2215").encode(),
    "NUL": lambda path: quote(path, safe="").encode() + b"%00.png",
    "a line break": lambda path: quote(path, safe="").encode() + b"%0d%0aX-Other:%201",
    "raw bytes": lambda path: path.replace("\0", "\xff").replace(" ", "").encode("latin-1"),
}


def elsewhere() -> Iterator[Request]:
    """These files, as the path of a picture, as a run, as a static file and as an address."""
    for path, encode in itertools.product(ELSEWHERE, ENCODINGS.values()):
        told = encode(path)
        yield get(b"/media?run=run&path=" + told, REFUSED)
        yield get(b"/media/frame?run=run&n=0&path=" + told, REFUSED)
        yield get(b"/settings?run=" + told, REFUSED)
        yield get(b"/compare?run=run&with=" + told, REFUSED)
        yield get(b"/static/" + told, REFUSED)
        yield get(b"/" + told.lstrip(b"/"), REFUSED)
    for run in (
        "..",
        ".",
        "",
        "/",
        "run/",
        "./run",
        "run/../run",
        "run/..",
        "linked",
        "../outside",
        "run\0",
        "run/rollouts",
        "RUN",
    ):
        for page in (
            "/curves",
            "/rollouts",
            "/settings",
            "/text",
            "/api/series",
            "/api/steps",
            "/part/row",
            "/api/live",
            "/alarms",
        ):
            yield get(f"{page}?id=10.0&run={quote(run, safe='')}", LOWER if run == "" else REFUSED)


# -- methods, headers and bytes ---------------------------------------------------------------------------------------------


def methods() -> Iterator[Request]:
    for method in (
        "POST",
        "PUT",
        "DELETE",
        "PATCH",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "PROPFIND",
        "MKCOL",
        "get",
        "A" * 300,
        "G\tT",
    ):
        for path in ("/", "/curves?run=run", "/static/page.css", "/api/live", "*", "localhost:80"):
            yield get(path, NOTHING, method=method)
    for header, body in (("Content-Length: 5", b"hello"), ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")):
        request = get("/", REFUSED, header, method="POST")
        yield replace(request, data=request.data + body)
    yield get("/", SERVED, method="HEAD")
    yield get("/curves?run=run", LOWER, method="HEAD")


HOSTS = (
    *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1:80@evil.example", ""),
    *("0.0.0.0", "localhost.", "2130706433", "0x7f.1", "127.1", "evil.example, localhost", "localhost evil", "169.254.169.254"),
    *("[::]", "a" * 5000, "localhost:99999999", "[::1", "[::1%25lo]", "\xff", "localhost\\evil", "localhost/evil", "localhost#"),
)
HEADERS = (
    *("Range: bytes=0-1", "Range: bytes=5-1", "Range: bytes=-1", "Range: bytes=0-99999999999999999999", "Range: bytes=a-b"),
    *("Range: bytes=" + ",".join(f"{n}-{n}" for n in range(1000)), "Range: lines=1", "If-None-Match: *", "If-Range: x"),
    *("If-Modified-Since: never", "If-Modified-Since: Mon, 99 Foo 99999 99:99:99 GMT", "Accept: " + "*/*," * 5000),
    *("Accept-Encoding: " + "gzip;q=nan," * 100, "Cookie: " + "a=b;" * 5000, "Cookie: mmrl-board", "Cookie: =;;=;", "Expect: a"),
    *(
        "Content-Length: -1",
        "Content-Length: 1e9",
        "Content-Length: 99999999999999999999",
        "Content-Length: 5\r\nContent-Length: 6",
    ),
    *("Transfer-Encoding: chunked\r\nContent-Length: 5", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: \x0bchunked"),
    *(
        "X: " + "a" * 100_000,
        "\r\n".join(f"X-{n}: a" for n in range(2000)),
        "X" * 70_000 + ": a",
        "X : a",
        " X: folded",
        ": a",
        "X",
    ),
    *("X: a\0b", "X: a\rb", "X: \xff\xfe", "Host: evil.example", "Upgrade: websocket\r\nSec-WebSocket-Version: 13"),
    *(
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
        "Origin: http://evil.example",
        "X-Forwarded-Host: evil.example",
    ),
    *(
        "X-Original-URL: /../secret.txt",
        "X-HTTP-Method-Override: DELETE",
        "Content-Type: multipart/form-data; boundary=" + "a" * 9999,
    ),
)


def headers() -> Iterator[Request]:
    for host in HOSTS:
        yield get("/api/runs", REFUSED, host=host)
    for header in HEADERS:
        for path in ("/", f"/media?run=run&path={PICTURE}", "/static/page.js"):
            yield get(path, ("", *LOWER), header)


GARBAGE = (
    *(
        b"\0" * 1000,
        b"\xff" * 100_000,
        b"\r\n" * 1000,
        b"GET",
        b"GET /",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\n\n",
        b" / \r\n\r\n",
    ),
    *(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(range(256)), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-a\r\n"),
    *(
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50 + b"\xff",
        b"GET /\r\n\r\n",
        b"GET  /  HTTP/1.1\r\n\r\n",
        b"{}\n",
        b"A" * 10**6,
    ),
    *(b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"),
    *(
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xc3\xa4 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ),
    *(
        b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET ?a HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET # HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + b"a" * 1000,
)


def garbage() -> Iterator[Request]:
    for data in GARBAGE:
        yield Request(f"bytes {data[:60]!r}", data, ("", *LOWER), ends=True)


# -- odd values -------------------------------------------------------------------------------------------------------------

PICTURE = "rollouts/media/" + f"{0:064x}" + ".png"
FIELDS = {
    "/": ("run",),
    "/curves": ("run",),
    "/rollouts": ("run", "step", "task", "status", "source", "low", "high", "q", "prompt", "sort", "after"),
    "/part/groups": ("run", "step", "low", "q", "after"),
    "/rollout": ("run", "id"),
    "/text": ("run", "id"),
    "/episodes": ("run", "step"),
    "/alarms": ("run",),
    "/compare": ("run", "with", "step", "with-step"),
    "/settings": ("run", "with"),
    "/part/row": ("run",),
    "/api/curves": ("run",),
    "/api/series": ("run", "key", "from", "to", "points"),
    "/api/steps": ("run",),
    "/media": ("run", "path"),
    "/media/frame": ("run", "path", "n"),
}
SOUND = {
    "run": "run", "with": "sound", "id": "10.0", "key": "reward/mean", "path": "episodes/step-000010/pick-0.webp",
}  # fmt: skip
ODD = (
    *(
        "NaN",
        "inf",
        "-1",
        "1e999",
        "9" * 400,
        "-0",
        "0x10",
        "1_0",
        "٣",
        "10.0.0",
        "10.-1",
        "99.99",
        "9999999999.0",
        "10.9999999999999999999",
    ),
    *(
        "[]",
        "[NaN,1,2]",
        "[1e400,2,3]",
        '["a",{},[]]',
        "[true,false,null]",
        "[" * 5000,
        "{}",
        "null",
        "true",
        "",
        " ",
        "\0",
        "\n",
    ),
    *(
        '" OR 1=1 --',
        "*",
        '"',
        "a NEAR/99999 b",
        "(" * 400,
        "'; DROP TABLE rollouts; --",
        "%",
        "_",
        "best",
        "last",
        "a" * 100_000,
    ),
    *("<script>alert(1)</script>", "\u202e", "\ufffe", "e\u0301" * 5000, "../../x", "1/0", "__proto__", "{{7*7}}"),
)
ODD_BYTES = (b"%ff%fe", b"%ed%a0%80", b"%", b"%zz", b"%u0000", b"+" * 100)
"""Half of a character, and what is no text."""


def odd_values() -> Iterator[Request]:
    for route, names in FIELDS.items():
        for name in names:
            others = "&".join(f"{key}={value}" for key, value in SOUND.items() if key in names and key != name)
            for told in (*(quote(value, safe="").encode() for value in ODD), *ODD_BYTES):
                yield get(f"{route}?{others}&{name}=".encode() + told, (*LOWER, "") if len(told) > 60_000 else LOWER)
            many = "&".join(f"{name}={SOUND.get(name, n)}" for n in range(1000))
            yield get(f"{route}?{others}&{many}", LOWER)
            yield get(f"{route}?{others}&{name}[]=1&{name}[a]=2", LOWER)


# -- many connections -------------------------------------------------------------------------------------------------------


def _at_once(served: Running) -> str:
    pages = ("/", "/curves?run=run", "/rollouts?run=run", "/api/runs", "/static/page.js")
    with ThreadPoolExecutor(50) as threads:
        asked = [get(page, SERVED) for page in pages] * 10
        return next(filter(None, threads.map(lambda request: fault(served, request), asked)), "")


def _held(served: Running, sent: bytes, count: int) -> str:
    """Connections that stay open, of which the sent bytes are all."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", served.port), 10))
            connection.sendall(sent)
        return fault(served, get("/", SERVED))


def _slow(served: Running) -> str:
    """A request that comes a few bytes at a time."""
    with socket.create_connection(("127.0.0.1", served.port), 10) as connection:
        data = get("/api/runs", SERVED).data
        for start in range(0, len(data), 7):
            connection.sendall(data[start : start + 7])
            time.sleep(0.02)
        return _judged(_read(connection), SERVED)


def _left_early(served: Running) -> str:
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", served.port), 10) as connection:
            connection.sendall(get("/rollouts?run=run", SERVED).data)
    return fault(served, get("/", SERVED))


HEAD = b" HTTP/1.1\r\nHost: localhost\r\n"
CONNECTIONS: dict[str, Callable[[Running], str]] = {
    "50 at once": _at_once,
    "50 half-sent": lambda served: _held(served, b"GET /" + HEAD + b"X-a: ", 50),
    "50 half-sent bodies": lambda served: _held(served, b"GET /" + HEAD + b"Content-Length: 1000\r\n\r\na", 50),
    "50 silent": lambda served: _held(served, b"", 50),
    "50 event streams": lambda served: _held(served, b"GET /api/live?run=run" + HEAD + b"\r\n", 50),
    "50 event streams of the list": lambda served: _held(served, b"GET /api/live" + HEAD + b"\r\n", 50),
    "20 that read nothing": lambda served: _held(served, (b"GET /static/page.js" + HEAD + b"\r\n") * 200, 20),
    "bytes one by one": _slow,
    "50 that leave": _left_early,
}


def tokens() -> Iterator[Request]:
    """To a board that has a token."""
    guesses = ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "%00", TOKEN + "%00", "%ff", "a" * 50_000, "*", "null", "[]", "ä"]
    for path in ("/", "/curves?run=run", "/api/runs", "/api/live", f"/media?run=run&path={PICTURE}", "/static/page.css", "/none"):
        yield get(path, REFUSED)
        for guess in guesses:
            sign = "&" if "?" in path else "?"
            yield get(f"{path}{sign}token={guess}".encode("latin-1"), NOTHING)
            yield get(path, REFUSED, f"Cookie: mmrl-board={guess}")
        yield get(path, REFUSED, f"Authorization: Bearer {TOKEN}")
        yield get(path, REFUSED, f"Cookie: other={TOKEN}; mmrl-board=x; mmrl-board={TOKEN}")
    for path in (
        "//evil.example/",
        "/%5cevil.example",
        "/%2f%2fevil.example",
        "/%09/evil.example",
        "/%0d%0aSet-Cookie:x=1",
        "///",
    ):
        yield get(f"{path}?token={TOKEN}", ("303",))


# -- asking -----------------------------------------------------------------------------------------------------------------


def fault(served: Running, request: Request) -> str:
    """What is wrong with the answer to a request."""
    began = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", served.port), bounds.SECONDS) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has read all
                connection.sendall(request.data)
            if request.ends:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
            said = _read(connection, b"\r\n\r\nretry:" if b"/api/live" in request.data else b"")
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    took = time.monotonic() - began
    return _judged(said, request.wanted) or (f"it took {took:.1f} s" if took > bounds.SECONDS else "")


def _read(connection: socket.socket, until: bytes = b"") -> bytes:
    """What comes until the other side closes, or until these bytes: an event stream has no end."""
    said = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            said += data
            if until and until in said:
                break
    return bytes(said)


def _judged(said: bytes, wanted: tuple[str, ...]) -> str:
    code = said[9:12].decode("latin-1")
    head, _, body = said.partition(b"\r\n\r\n")
    if not (code.startswith(tuple(filter(None, wanted))) or (not said and "" in wanted)):
        return f"it answered {said[:200]!r}, not {' or '.join(wanted)}"
    if told := next((text for text in OUTSIDE if text.encode() in body), ""):
        return f"{told!r} is in the answer"
    place = re.search(rb"(?im)^location: *([^\r]*)", head)
    return f"it leads to {place[1]!r}" if place and not re.match(rb"(?:http://localhost)?/(?![/\\])", place[1]) else ""


def board_requests(every: int = 1) -> Iterator[Attempt]:
    """every: one in so many of the requests is tried."""
    with tempfile.TemporaryDirectory() as temporary:
        runs = _folder(Path(temporary))
        with board(runs, Path(temporary) / "caches") as served:
            served.indexed("run", 4)
            kinds = (methods(), headers(), garbage(), elsewhere(), odd_values())
            yield from _asked(served, itertools.chain(*kinds), every)
            for name, ask in list(CONNECTIONS.items())[:: min(every, 4)]:
                yield Attempt(name, ask(served))
            yield _at_the_end(served)
        with board(runs, Path(temporary) / "caches", token=TOKEN) as served:
            yield from _asked(served, tokens(), every)


def _asked(served: Running, requests: Iterator[Request], every: int) -> Iterator[Attempt]:
    for request in itertools.islice(requests, 0, None, every):
        yield Attempt(request.name, fault(served, request))


def _at_the_end(served: Running) -> Attempt:
    answer, peak_mb = served.get("/"), bounds.board_mb(served)
    sound = answer.code == 200 and 'data-run="sound"' in answer.text
    return Attempt("after all", f"{answer.code}, {peak_mb:.0f} MB" if not sound or peak_mb > bounds.MEMORY_MB else "")


def _folder(folder: Path) -> Path:
    """Runs, with secrets beside them and links to these."""
    runs = folder / "runs"
    run = whole(runs / "run")
    whole(runs / "sound")
    whole(folder / "outside")
    (folder / "outside" / "config.toml").write_text(f'name = "{SECRET}"\n')
    (run / "checkpoints").mkdir(exist_ok=True)
    for file in (folder / "secret.txt", folder / "secret.png", runs / "secret.txt", run / "checkpoints" / "secret.png"):
        file.write_text(SECRET)
    (run / "rollouts" / "media" / "linked.png").symlink_to(folder / "secret.png")
    (runs / "linked.png").symlink_to(folder / "secret.png")
    (runs / "linked").symlink_to(folder / "outside")
    return runs

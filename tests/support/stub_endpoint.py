"""An OpenAI-compatible endpoint on loopback, for tests: a function answers, or faults are played."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Stub:
    """What the endpoint does, and what it was asked."""

    answer: Callable[[dict[str, Any]], str] = lambda body: "yes"
    """The request's body -> the text of the answer."""
    faults: list[Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)
    """Played in this order instead of answering, one for each request."""
    always: Callable[[BaseHTTPRequestHandler], None] | None = None
    """Played for every request after `faults`."""
    finish_reason: str = "stop"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    url: str = ""
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def completion(text: Any, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": usage}


def streamed(text: str, finish_reason: str = "stop") -> bytes:
    """The same as events: the text, its end, and the usage."""
    whole = completion(text)
    chunk = {**whole, "object": "chat.completion.chunk", "usage": None}
    ends = [({"role": "assistant", "content": text}, None), ({}, finish_reason)]
    chunks = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in ends]
    chunks.append({**chunk, "choices": [], "usage": whole["usage"]})
    return b"".join(b"data: " + line + b"\n\n" for line in (*(json.dumps(c).encode() for c in chunks), b"[DONE]"))


def send(handler: BaseHTTPRequestHandler, status: int, content: bytes, kind: str = "application/json", **headers: str) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Type": kind, "Content-Length": str(len(content))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)


def status(number: int, message: str = "no", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    body = json.dumps({"error": {"message": message, "type": "x"}}).encode()
    return lambda handler: send(handler, number, body, **headers)


def body(content: bytes, kind: str = "application/json") -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: send(handler, 200, content, kind)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


@contextlib.contextmanager
def stub_endpoint(**settings: Any) -> Iterator[Stub]:
    stub = Stub(**settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub.lock:
                stub.bodies.append(asked)
                stub.keys.append(self.headers.get("Authorization", ""))
                stub.at_once += 1
                stub.most_at_once = max(stub.most_at_once, stub.at_once)
                fault = stub.faults.pop(0) if stub.faults else stub.always
            try:
                if fault:
                    fault(self)
                elif asked.get("stream"):
                    send(self, 200, streamed(stub.answer(asked), stub.finish_reason), "text/event-stream")
                else:
                    send(self, 200, json.dumps(completion(stub.answer(asked), stub.finish_reason)).encode())
            except (BrokenPipeError, ConnectionResetError):  # the client went away
                self.close_connection = True
            finally:
                with stub.lock:
                    stub.at_once -= 1

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Servers on loopback that answer as AndroidWorld's and OSWorld's do, with a small world behind them, and that can be told to fail."""

from __future__ import annotations

import io
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from PIL import Image

SIZE = (40, 60)


class Stub:
    """requests: what was asked, `METHOD path`, with its query and body. broken: path -> bytes, a status, or `hang`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.broken: dict[str, Any] = {}
        self.size = SIZE
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = dict(parse_qsl(parts.query))
                stub.requests.append((f"{self.command} {parts.path}", query, json.loads(body) if body else None))
                broken = stub.broken.get(parts.path)
                if broken == "hang":
                    time.sleep(1.0)
                    return
                found = broken if broken is not None else stub.reply(*stub.requests[-1])
                content = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(found if isinstance(found, int) else 200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = answer

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def asked(self, path: str) -> list[Any]:
        """(query, body) of the requests to a path."""
        return [(query, body) for name, query, body in self.requests if name == path]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def reply(self, name: str, query: dict[str, str], body: Any) -> Any:
        raise NotImplementedError


class Phone(Stub):
    """AndroidWorld's server: two tasks; one is done by opening Clock, the other by the answer 42."""

    def __init__(self) -> None:
        super().__init__()
        self.task: tuple[str, int] | None = None
        self.state: dict[str, Any] = {}

    def reply(self, name: str, query: dict[str, str], body: Any) -> Any:
        match name:
            case "GET /screenshot":
                shade = 200 if self.state.get("app") == "Clock" else 20
                return {"pixels": [[[shade, 0, 255]] * self.size[0]] * self.size[1]}
            case "GET /suite/task_list":
                return {"task_list": ["ClockOpen", "AnswerNumber"]}
            case "GET /suite/task_length":
                return {"length": 2}
            case "GET /task/goal":
                return {"goal": f"Do {query['task_type']} {query['task_idx']}."}
            case "POST /task/initialize":
                self.task, self.state = (query["task_type"], int(query["task_idx"])), {}
            case "POST /execute_action" if body["action_type"] == "open_app":
                self.state["app"] = body["app_name"]
            case "POST /execute_action" if body["action_type"] == "answer":
                self.state["answer"] = body["text"]
            case "GET /task/score":
                done = self.state.get("app") == "Clock" or self.state.get("answer") == "42"
                return {"score": float(done)}
        return {"status": "success", "message": name}


class Machine(Stub):
    """OSWorld's server: a desktop on which typed text is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.typed = ""

    def reply(self, name: str, query: dict[str, str], body: Any) -> Any:
        match name:
            case "GET /screenshot":
                file = io.BytesIO()
                Image.new("RGB", self.size, (0, 90, 0) if self.typed else (90, 0, 0)).save(file, "PNG")
                return file.getvalue()
            case "GET /accessibility":
                space = "https://accessibility.ubuntu.example.org/ns/"
                seen = 's:visible="true" s:showing="true"'
                return {
                    "AT": f'<desktop-frame xmlns:s="{space}state" xmlns:c="{space}component">'
                    f'<push-button name="Save" {seen} c:screencoord="(4, 30)" c:size="(10, 8)"/>'
                    f'<push-button name="Away" {seen} c:screencoord="(400, 30)" c:size="(10, 8)"/>'
                    f'<label name="Hidden" s:visible="true" c:screencoord="(1, 1)" c:size="(9, 9)"/>'
                    f'<text {seen} c:screencoord="(2, 3)" c:size="(90, 5)">words</text></desktop-frame>'
                }
            case "POST /execute":
                code = body["command"][-1]
                if "typewrite" in code:
                    self.typed = code.partition("typewrite('")[2].partition("'")[0]
                return {"status": "success", "output": f"{self.typed}\n", "error": "", "returncode": 0}
        return b"done"  # what /setup answers is plain text

"""AndroidWorld and OSWorld by the HTTP interfaces of their servers, against servers on loopback that answer as they do, with a
small world behind them, and that can be told to fail."""

from __future__ import annotations

import io
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from mmrl_gui.actions import read
from mmrl_gui.episodes import Episodes
from mmrl_gui.hosted.android import AndroidWorld, json_action
from mmrl_gui.hosted.osworld import OSWorld, pyautogui
from mmrl_gui.hosted.servers import Server
from PIL import Image

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import Action

SIZE = (40, 60)


class Stub:
    """requests: what was asked, `METHOD path`, with its query and body. broken: path -> bytes, a status, or `hang`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.broken: dict[str, Any] = {}
        self.size = SIZE
        self.closed = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = dict(parse_qsl(parts.query))
                stub.requests.append((f"{self.command} {parts.path}", query, json.loads(body) if body else None))
                broken = stub.broken.get(parts.path)
                if broken == "hang":
                    stub.closed.wait(60)
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
        self.closed.set()
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


@pytest.fixture
def phone():
    server = Phone()
    yield server
    server.close()


@pytest.fixture
def machine():
    server = Machine()
    yield server
    server.close()


def task_file(folder, name="note", **changes):
    """One of OSWorld's files: write hello; scored by what a command prints."""
    rules = {"include": ["hello"], "exclude": ["nope"]}
    evaluator = {
        "func": "check_include_exclude",
        "result": {"type": "vm_command_line", "command": ["cat", "note.txt"]},
        "expected": {"type": "rule", "rules": rules},
    }
    config = [{"type": "launch", "parameters": {"command": "gedit note.txt"}}, {"type": "sleep", "parameters": {"seconds": 0}}]
    task = {"id": name, "instruction": f"Write hello in {name}.", "config": config, "evaluator": evaluator} | changes
    (folder / "os").mkdir(exist_ok=True)
    (folder / "os" / f"{name}.json").write_text(json.dumps(task))
    return str(folder)


def test_an_android_episode_is_played_as_published(phone):
    screens = AndroidWorld(servers=phone.address, family="android_world", instances=3, suite_seed=7)
    assert screens.size == SIZE and screens.pages == ["ClockOpen", "AnswerNumber"]
    wanted = {"n_task_combinations": "3", "seed": "7", "task_family": "android_world"}
    assert phone.asked("GET /suite/reinitialize") == [(wanted, None)]
    screen = screens.open()
    shown = screen.start("ClockOpen", seed=5)
    assert shown.instruction == "Do ClockOpen 1." and shown.screenshot.getpixel((0, 0)) == (20, 0, 255)
    opened = screen.act(Action(kind="open", text="Clock"))
    assert opened.screenshot.getpixel((3, 3)) == (200, 0, 255) and not opened.terminated
    assert "double-click is off the screen" in screen.act(Action(kind="double-click", at=(5, 60))).notes[0]
    ended = screen.act(Action(kind="answer", text="done"))
    assert ended.terminated and ended.success and ended.reward == 1.0
    done = [body for _, body in phone.asked("POST /execute_action")]
    assert done == [{"action_type": "open_app", "app_name": "Clock"}, {"action_type": "status", "goal_status": "complete"}]
    with pytest.raises(EnvironmentFailed, match="the episode is over"):
        screen.act(Action(kind="wait"))
    screen.close()
    assert phone.asked("POST /task/tear_down") == [({"task_type": "ClockOpen", "task_idx": "1"}, None)]


@pytest.mark.parametrize("answer,score,sent", [("42", 1, "complete"), ("41", 0, "complete"), ("infeasible", 0, "infeasible")])
def test_an_answer_ends_and_is_scored(phone, answer, score, sent):
    screen = AndroidWorld(servers=[phone.address]).open()
    screen.start("AnswerNumber", seed=0, picture=False)
    ended = screen.act(Action(kind="answer", text=answer))
    assert (ended.terminated, ended.success, ended.reward) == (True, bool(score), score)
    assert phone.asked("POST /execute_action")[-1][1] == {"action_type": "status", "goal_status": sent}
    screen.close()


@pytest.mark.parametrize(
    "said, sent",
    [
        ('{"action": "terminate", "status": "success"}', "complete"),
        ('{"action": "terminate", "status": "failure"}', "infeasible"),
        ('{"action_type": "status", "goal_status": "complete"}', "complete"),
        ('{"action": "terminate"}', "complete"),
    ],
)
def test_to_say_how_a_task_ended_is_no_answer_to_it(phone, said, sent):
    screen = AndroidWorld(servers=[phone.address]).open()
    screen.start("AnswerNumber", seed=0, picture=False)
    assert screen.act(read(said)).terminated
    assert [body for _, body in phone.asked("POST /execute_action")] == [{"action_type": "status", "goal_status": sent}]
    screen.close()


def test_actions_go_out_in_the_words_of_their_papers():
    said = {
        Action(kind="click", at=(3.7, 4.2)): {"action_type": "click", "x": 3, "y": 4},
        Action(kind="long-press", at=(1, 2)): {"action_type": "long_press", "x": 1, "y": 2},
        Action(kind="type", text="hi"): {"action_type": "input_text", "text": "hi"},
        Action(kind="scroll", direction="up"): {"action_type": "scroll", "direction": "up"},
        Action(kind="key", text="Enter"): {"action_type": "keyboard_enter"},
        Action(kind="back"): {"action_type": "navigate_back"},
    }
    assert {action: json_action(action) for action in said} == said
    code = {
        Action(kind="click", at=(3, 4)): "pyautogui.click(x=3, y=4)",
        Action(kind="right-click", at=(3, 4)): "pyautogui.rightClick(x=3, y=4)",
        Action(kind="triple-click", at=(3, 4)): "pyautogui.tripleClick(x=3, y=4)",
        Action(kind="middle-click", at=(3, 4)): "pyautogui.middleClick(x=3, y=4)",
        Action(kind="hover", at=(3, 4)): "pyautogui.moveTo(x=3, y=4)",
        Action(kind="drag", to=(3, 4)): "pyautogui.dragTo(3, 4, duration=1.0, button='left', mouseDownUp=True)",
        Action(kind="scroll", direction="down"): "pyautogui.moveTo(20, 30); pyautogui.vscroll(-5)",
        Action(kind="scroll", direction="up", at=(1, 2)): "pyautogui.moveTo(1, 2); pyautogui.vscroll(5)",
        Action(kind="key", text="Control+A"): "pyautogui.hotkey('ctrl', 'a')",
        Action(kind="key", text="Enter"): "pyautogui.press('enter')",
        Action(kind="type", text="it's\n"): 'pyautogui.typewrite("it\'s\\n")',
    }
    assert {action: pyautogui(action, SIZE, 5) for action in code} == code


def test_a_desktop_episode_is_set_up_played_and_scored(machine, tmp_path):
    folder = task_file(tmp_path)
    task_file(tmp_path, "other", evaluator={"func": "compare_table", "result": {}, "expected": {}})
    with pytest.warns(UserWarning, match=r"1 of 2 tasks in .* are left out, such as os/other \(its evaluator 'compare_table'"):
        screens = OSWorld(tasks=folder, servers=machine.address, pause_s=0, revert=["test", "{server}", "=", machine.address])
    assert screens.pages == ["os/note"] and screens.size == SIZE
    screen = screens.open(elements=True)
    shown = screen.start("os/note", seed=1)
    assert shown.instruction == "Write hello in note." and machine.asked("POST /setup/launch")[0][1]["command"] == [
        "gedit",
        "note.txt",
    ]
    assert [(e.text, e.box, e.interactive) for e in shown.elements] == [
        ("words", (2, 3, 40, 8), True),
        ("Save", (4, 30, 14, 38), True),
    ]
    typed = screen.act(Action(kind="type", text="hello"))
    assert typed.screenshot.getpixel((0, 0)) == (0, 90, 0) and not typed.terminated
    prefix = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
    assert machine.asked("POST /execute")[0][1] == {
        "command": ["python", "-c", f"{prefix}pyautogui.typewrite('hello')"],
        "shell": False,
    }
    assert "an answer must be done" in screen.act(Action(kind="answer", text="42")).notes[0]
    ended = screen.act(Action(kind="answer", text="done"))
    assert ended.terminated and ended.success and ended.reward == 1.0
    screen.start("os/note", seed=1)
    machine.typed = "hello nope"
    assert screen.act(Action(kind="answer", text="done")).reward == 0.0
    screen.start("os/note", seed=1)
    machine.typed = "hello"
    assert screen.act(Action(kind="answer", text="fail")).reward == 0.0, "a task that can be done was given up"
    screen.close()


def test_a_task_that_can_not_be_done_is_right_to_give_up(machine, tmp_path):
    screens = OSWorld(tasks=task_file(tmp_path, evaluator={"func": "infeasible"}), servers=machine.address, pause_s=0)
    for answer, score in (("fail", 1.0), ("failure", 1.0), ("done", 0.0), ("success", 0.0)):
        screen = screens.open()
        screen.start("os/note", seed=0)
        assert screen.act(Action(kind="answer", text=answer)).reward == score
        screen.close()


def test_the_task_of_episodes_plays_them(phone):
    task = Episodes(simulator="gui/android-world", options={"servers": [phone.address], "each": True}, pages=["ClockOpen"])
    (prompt, *_) = task.prompts("train", 0)[:2]
    play = task.environment(prompt)
    assert play.step('{"action": "wait"}').outcome["success"] == 0.0
    reply = play.step('{"action": "open", "text": "Clock"}')
    assert reply.terminated and reply.outcome["success"] == 1.0, reply
    play.close()


def test_a_prompt_is_tried_again_when_its_screen_can_not_be_put_away(phone):
    task = Episodes(simulator="gui/android-world", options={"servers": [phone.address]}, pages=["ClockOpen"])
    prompts = task.prompts("train", 0)
    phone.broken = {"/task/tear_down": 500}
    with pytest.raises(UserError, match=r"page 'ClockOpen' can't be shown, tried 3 times: .*/task/tear_down answers 500"):
        prompts[0]
    phone.broken = {}
    assert prompts[0].meta["page"] == "ClockOpen"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"RFB 003.008\n", "/x answers no HTTP: BadStatusLine"),  # a port of VNC
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc", "/x answers no HTTP: IncompleteRead"),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc", "/x answers 500: no text"),
    ],
)
def test_what_is_no_reply_loses_the_episode_in_one_line(reply, why):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            asking, _ = listening.accept()
            with asking:
                asking.recv(4096)
                asking.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(EnvironmentFailed, match=why) as error:
            Server(f"http://127.0.0.1:{listening.getsockname()[1]}", 2.0).ask("/x")
    assert "\n" not in str(error.value)


def test_servers_that_fail_lose_the_episode_in_one_line(phone):
    screens = AndroidWorld(servers=phone.address, timeout_s=0.3, wait_s=0.1)
    failures = [
        ("/screenshot", b"<html>busy</html>", "answers no JSON: b'<html>busy"),
        ("/screenshot", {"pixels": [[1, 2], [3]]}, "answers pixels"),
        ("/screenshot", {"pixels": [[[1, 2, 300]]]}, r"answers pixels \[1, 1, 3\], and a picture is"),
        ("/screenshot", {"pixels": [[[1, 2, 3]]]}, "shows a screen of 1 x 1 pixels, and showed one of 40 x 60"),
        ("/screenshot", {"picture": 1}, "answers without 'pixels'"),
        ("/screenshot", "hang", r"didn't answer within 0.3 s"),
        ("/task/initialize", 500, "answers 500"),
        ("/suite/task_length", {"length": "two"}, "says length = 'two', and that is no number"),
    ]
    for path, broken, why in failures:
        phone.broken = {path: broken}
        screen = screens.open()
        with pytest.raises(EnvironmentFailed, match=why) as error:
            screen.start("ClockOpen", seed=0)
        assert "\n" not in str(error.value)
        phone.broken = {}
        screen.close()
    held = screens.open()
    held.start("ClockOpen", seed=0)
    with pytest.raises(EnvironmentFailed, match=r"the server was busy for 0.1 s: set generate.batch_size = 1"):
        screens.open().start("ClockOpen", seed=0)
    with pytest.raises(UserError, match="there is no task 'Clock'"):
        held.start("Clock", seed=0)
    phone.broken = {"/task/score": {"score": float("nan")}}
    with pytest.raises(EnvironmentFailed, match="says score = nan, and that is no number"):
        held.act(Action(kind="answer", text="done"))
    held.close()


def test_what_can_not_be_is_refused_in_one_line(phone, machine, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    machine.broken = {"/screenshot": b"no picture"}
    (tmp_path / "one").mkdir()
    folder = task_file(tmp_path / "one", "one")
    cases = [
        (AndroidWorld, {"servers": nobody}, "refused: start the server, or correct servers"),
        (AndroidWorld, {"servers": []}, "names no server"),
        (AndroidWorld, {"servers": True}, "servers = True names no server"),
        (AndroidWorld, {"servers": 3.5}, "servers = 3.5 names no server"),
        (AndroidWorld, {"servers": phone.address, "timeout_s": 1e30}, r"timeout_s = 1e\+30 must be .*, at most 86400"),
        (AndroidWorld, {"servers": phone.address, "wait_s": -1}, "wait_s = -1 must be"),
        (AndroidWorld, {"servers": ["localhost:5000"]}, "that is no address"),
        (AndroidWorld, {"servers": [phone.address] * 2}, "names one server twice"),
        (AndroidWorld, {"servers": phone.address, "timeout_s": 0}, "timeout_s = 0 must be"),
        (OSWorld, {"servers": machine.address, "tasks": folder}, "answers no picture: b'no picture'"),
        (OSWorld, {"servers": machine.address, "tasks": str(tmp_path / "bad.json")}, "is no JSON"),
        (OSWorld, {"servers": machine.address, "tasks": str(tmp_path / "list.json")}, "is no task of OSWorld"),
        (OSWorld, {"servers": machine.address, "tasks": str(tmp_path / "none.json")}, "can't be read"),
        (OSWorld, {"servers": machine.address, "tasks": folder, "revert": "vmrun"}, "revert = 'vmrun' must be a list of words"),
    ]
    for made, options, why in cases:
        with pytest.raises(UserError, match=why) as error:
            made(**options)
        assert "\n" not in str(error.value)
    task_file(tmp_path / "one", "one", config=[{"type": "download"}])
    with pytest.raises(UserError, match=r"none of the 1 tasks in .* can be scored here, such as os/one \(its step 'download'"):
        OSWorld(servers=machine.address, tasks=folder)
    machine.broken = {}
    screens = OSWorld(servers=machine.address, tasks=task_file(tmp_path / "one", "one"), revert=["false"])
    screen = screens.open()
    with pytest.raises(EnvironmentFailed, match=r"false \(revert\) ended with 1"):
        screen.start("os/one", seed=0)
    screen.close()

"""AndroidWorld (Rawles et al. 2024, arXiv 2405.14573) by the HTTP server of its repository, `server/android_server.py`.

An emulator in its container plays one episode at a time. Actions are AndroidWorld's `JSONAction`s, and a task is scored as there:
when the policy says that it is done, by the state of the apps. Seed s plays the instance s modulo their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import Action
from mmrl.api.tasks.option_checks import check_integer, check_type
from mmrl_gui.hosted.screens import Hosted, HostedScreen, pixel
from mmrl_gui.hosted.servers import Server, servers_of
from mmrl_gui.names import DONE, IMPOSSIBLE

TOUCHES = {"click": "click", "double-click": "double_tap", "long-press": "long_press"}
PLAIN = {"wait": "wait", "back": "navigate_back", "home": "navigate_home"}
"""Ours -> AndroidWorld's `action_type`."""
ALL = -1
"""`max_index` of all tasks."""


class AndroidWorld(Hosted):
    """The tasks of a suite, each a page."""

    actions = frozenset((*TOUCHES, *PLAIN, "scroll", "type", "key", "open", "answer"))

    def __init__(
        self,
        *,
        servers: Sequence[str] | str = ("http://localhost:5000",),
        family: str = "",
        instances: int = 2,
        suite_seed: int = 42,
        each: bool = False,
        timeout_s: float = 120.0,
        wait_s: float = 600.0,
    ) -> None:
        """servers: addresses of AndroidWorld's servers, one for each episode at a time. family: suite of tasks that the servers
        are told to make, such as android_world; by default the one that they have. instances, suite_seed: of that suite, how many
        of each task, and what their parameters are drawn with. each: score after every action, and end the episode at success;
        by default only where the policy answers, as published. timeout_s: seconds for a request. wait_s: for a server that is
        free."""
        check_type("each", each, bool)
        check_type("family", family, str)
        check_integer("instances", instances, 1, 10_000)
        check_integer("suite_seed", suite_seed, 0, 2**32 - 1)
        found = servers_of(servers, timeout_s)
        super().__init__(found, wait_s)
        self.each = each
        lists = []
        try:
            for server in found:
                if family:
                    wanted = {"n_task_combinations": instances, "seed": suite_seed, "task_family": family}
                    server.ask("/suite/reinitialize", wanted)
                lists.append(server.field("/suite/task_list", "task_list", {"max_index": ALL}))
            self.pages = [name for name in lists[0] if isinstance(name, str)] if isinstance(lists[0], list) else []
            if not self.pages:
                raise UserError(f"{found[0].address} lists no tasks: {lists[0]!r:.60}")
        except EnvironmentFailed as error:
            raise UserError(str(error)) from error
        if any(other != lists[0] for other in lists):
            raise UserError("the servers have different tasks: give them one suite, by the option family")

    def open(self, elements: bool = False) -> AndroidScreen:
        """Raises UserError for elements: the server doesn't list them."""
        if elements:
            raise UserError('AndroidWorld\'s server lists no elements: set observe = "picture"')
        return AndroidScreen(self)

    def look(self, server: Server) -> Image.Image:
        import numpy

        rows = server.field("/screenshot", "pixels", {"wait_to_stabilize": "true"})
        try:
            pixels = numpy.array(rows)
        except ValueError:
            pixels = numpy.array(None)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype.kind != "i" or pixels.min() < 0 or pixels.max() > 255:
            raise server.failed(
                "/screenshot", f"answers pixels {list(pixels.shape)}, and a picture is [height, width, 3] of 0 to 255"
            )
        return Image.fromarray(pixels.astype("uint8"))


class AndroidScreen(HostedScreen):
    """One episode on an emulator."""

    screens: AndroidWorld
    task: dict[str, Any] | None = None

    def begin(self, server: Server, page: str, seed: int) -> str:
        self.leave(server)
        count = int(server.number("/suite/task_length", "length", {"task_type": page}))
        if count < 1:
            raise server.failed("/suite/task_length", f"says that {page} has {count} instances")
        server.ask("/reset", {"go_home": "true"}, method="POST")
        wanted = {"task_type": page, "task_idx": seed % count}
        self.task = wanted
        server.ask("/task/initialize", wanted, method="POST")
        return str(server.field("/task/goal", "goal", wanted))

    def do(self, server: Server, action: Action) -> None:
        server.ask("/execute_action", body=json_action(action), method="POST")

    def end(self, server: Server, answer: str) -> float:
        said = answer.strip().lower()
        if said not in (*DONE, *IMPOSSIBLE):
            server.ask("/execute_action", body={"action_type": "answer", "text": answer}, method="POST")
        status = "infeasible" if said in IMPOSSIBLE else "complete"
        server.ask("/execute_action", body={"action_type": "status", "goal_status": status}, method="POST")
        return self._score(server)

    def score_now(self, server: Server) -> float:
        return self._score(server) if self.screens.each else 0.0

    def leave(self, server: Server) -> None:
        task, self.task = self.task, None
        if task is not None:
            server.ask("/task/tear_down", task, method="POST")

    def refusal(self, action: Action) -> str | None:
        if action.kind == "key" and action.text != "Enter":
            return f"{action.text[:40]!r} is no key that AndroidWorld presses: only Enter is"
        return super().refusal(action)

    def _score(self, server: Server) -> float:
        assert self.task
        return min(max(server.number("/task/score", "score", self.task), 0.0), 1.0)


def json_action(action: Action) -> dict[str, Any]:
    """AndroidWorld's `JSONAction` as a dict."""
    if action.kind in PLAIN:
        return {"action_type": PLAIN[action.kind]}
    if action.kind in TOUCHES:
        assert action.at
        x, y = pixel(action.at)
        return {"action_type": TOUCHES[action.kind], "x": x, "y": y}
    if action.kind == "type":
        return {"action_type": "input_text", "text": action.text} | (
            dict(zip("xy", pixel(action.at), strict=True)) if action.at else {}
        )
    if action.kind == "scroll":
        return {"action_type": "scroll", "direction": action.direction or "down"}
    if action.kind == "open":
        return {"action_type": "open_app", "app_name": action.text}
    return {"action_type": "keyboard_enter"}

"""OSWorld (Xie et al. 2024, arXiv 2404.07972) by the HTTP server in its virtual machines, `desktop_env/server/main.py`.

What a policy does goes to the machine as pyautogui code, as OSWorld's `computer_13` actions do; there is a pause of two seconds
after each, as there. Tasks are OSWorld's JSON files. Its evaluators run beside the machine and fetch files from the internet; of
them `evaluating` has those that need the machine alone, and the other tasks are left out, and counted.
"""

from __future__ import annotations

import subprocess
import time
import warnings
from collections.abc import Sequence

from PIL import Image

from mmrl import EnvironmentFailed, UserError
from mmrl.api.errors import is_finite
from mmrl.api.simulators.gui import Action, Element, ScreenObservation
from mmrl.api.tasks.option_checks import check_integer, check_type
from mmrl_gui.hosted.desktop_elements import elements_of
from mmrl_gui.hosted.evaluating import Evaluation, prepare
from mmrl_gui.hosted.osworld_tasks import TaskFile, read_tasks
from mmrl_gui.hosted.screens import Hosted, HostedScreen, pixel
from mmrl_gui.hosted.servers import Server, one_line, servers_of
from mmrl_gui.names import DONE, IMPOSSIBLE

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
"""What OSWorld puts before the code of an action."""
KEYS = {
    "control": "ctrl",
    "meta": "win",
    "escape": "esc",
    "arrowup": "up",
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
}
"""Names of keys -> pyautogui's."""
CLICKS = {
    **{"click": "click", "double-click": "doubleClick", "triple-click": "tripleClick"},
    **{"right-click": "rightClick", "middle-click": "middleClick", "hover": "moveTo"},
}
PROBE_S = 5.0
"""Seconds between two looks at a machine that is starting."""


class OSWorld(Hosted):
    """The tasks of a folder, each a page."""

    actions = frozenset((*CLICKS, "drag", "scroll", "type", "key", "wait", "answer"))

    def __init__(
        self,
        *,
        tasks: str,
        servers: Sequence[str] | str = ("http://localhost:5000",),
        revert: Sequence[str] = (),
        revert_s: float = 300.0,
        pause_s: float = 2.0,
        clicks: int = 5,
        timeout_s: float = 90.0,
        wait_s: float = 600.0,
    ) -> None:
        """tasks: one of OSWorld's task files, or a folder of them, such as evaluation_examples/examples. servers: addresses of
        the machines. revert: a command that puts a machine back before an episode, {server} being its address, such as
        ["vmrun", "revertToSnapshot", ...]; without it an episode begins on the desktop that the last one left. revert_s:
        seconds for that, until the machine answers again. pause_s: seconds after an action. clicks: of the wheel, for a scroll.
        timeout_s: seconds for a request. wait_s: for a machine that is free."""
        check_type("tasks", tasks, str)
        check_integer("clicks", clicks, 1, 100)
        for name, value in (("revert_s", revert_s), ("pause_s", pause_s)):
            if not is_finite(value) or value < 0:
                raise UserError(f"{name} = {value!r:.40} must be a number from 0")
        if isinstance(revert, str) or not all(isinstance(word, str) for word in revert):
            raise UserError(f'revert = {revert!r:.60} must be a list of words, such as ["./revert.sh", "{{server}}"]')
        self.tasks, left = read_tasks(tasks)
        if left:
            warnings.warn(
                f"{len(left)} of {len(left) + len(self.tasks)} tasks in {tasks} are left out, such as {left[0]}", stacklevel=2
            )
        self.pages = list(self.tasks)
        super().__init__(servers_of(servers, timeout_s), wait_s)
        self.revert, self.revert_s, self.pause_s, self.clicks = list(revert), revert_s, pause_s, clicks

    def open(self, elements: bool = False) -> Desktop:
        return Desktop(self, elements)

    def look(self, server: Server) -> Image.Image:
        return server.picture("/screenshot")


class Desktop(HostedScreen):
    """One episode on a machine."""

    screens: OSWorld

    def __init__(self, screens: OSWorld, elements: bool) -> None:
        super().__init__(screens)
        self.elements = elements
        self.task: TaskFile | None = None

    def start(self, page: str, seed: int, picture: bool = True) -> ScreenObservation:
        return self._listed(super().start(page, seed, picture))

    def act(self, action: Action) -> ScreenObservation:
        return self._listed(super().act(action))

    def begin(self, server: Server, page: str, seed: int) -> str:
        self.task = self.screens.tasks[page]
        if self.screens.revert:
            self._revert(server)
        prepare(server, self.task.config)
        return self.task.instruction

    def do(self, server: Server, action: Action) -> None:
        if action.kind != "wait":
            code = PREFIX + pyautogui(action, self.screens.size, self.screens.clicks)
            server.field("/execute", "status", body={"command": ["python", "-c", code], "shell": False}, method="POST")
        time.sleep(self.screens.pause_s)

    def end(self, server: Server, answer: str) -> float:
        assert self.task
        said = answer.strip().lower()
        return Evaluation(self.task.evaluator).score(server, impossible=said in IMPOSSIBLE)

    def refusal(self, action: Action) -> str | None:
        if action.kind == "answer" and action.text.strip().lower() not in (*DONE, *IMPOSSIBLE):
            return f"an answer must be {DONE[0]}, or {IMPOSSIBLE[0]} for a task that can't be done"
        return super().refusal(action)

    def _listed(self, shown: ScreenObservation) -> ScreenObservation:
        if not self.elements or shown.terminated or self.server is None:
            return shown
        import dataclasses

        found: tuple[Element, ...] = elements_of(self.server, self.screens.size)
        return dataclasses.replace(shown, elements=found)

    def _revert(self, server: Server) -> None:
        """Runs the user's command and waits until the machine shows its screen."""
        command = [word.replace("{server}", server.address) for word in self.screens.revert]
        until = time.monotonic() + self.screens.revert_s
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.screens.revert_s)
        except subprocess.TimeoutExpired:
            raise EnvironmentFailed(f"{command[0]} (revert) didn't end within {self.screens.revert_s:g} s") from None
        except OSError as error:
            raise EnvironmentFailed(f"{command[0]} (revert) can't be run: {error.strerror}") from error
        if done.returncode:
            raise EnvironmentFailed(f"{command[0]} (revert) ended with {done.returncode}: {one_line(done.stderr)}")
        while True:
            try:
                self.screens.seen(server)
                return
            except EnvironmentFailed:
                if time.monotonic() + PROBE_S > until:
                    raise
                time.sleep(PROBE_S)


def pyautogui(action: Action, size: tuple[int, int], clicks: int) -> str:
    """The code of an action, in the words of OSWorld's controller. size: of the screen, whose middle is scrolled by default."""
    if action.kind in CLICKS:
        assert action.at
        x, y = pixel(action.at)
        return f"pyautogui.{CLICKS[action.kind]}(x={x}, y={y})"
    if action.kind == "drag":
        assert action.to
        to_x, to_y = pixel(action.to)
        first = f"pyautogui.moveTo({pixel(action.at)[0]}, {pixel(action.at)[1]}); " if action.at else ""
        return f"{first}pyautogui.dragTo({to_x}, {to_y}, duration=1.0, button='left', mouseDownUp=True)"
    if action.kind == "scroll":
        x, y = pixel(action.at or (size[0] / 2, size[1] / 2))
        way, sign = ("hscroll", 1) if action.direction in ("left", "right") else ("vscroll", -1)
        amount = sign * clicks * (1 if action.direction in ("down", "right", None) else -1)
        return f"pyautogui.moveTo({x}, {y}); pyautogui.{way}({amount})"
    if action.kind == "type":
        first = f"pyautogui.click(x={pixel(action.at)[0]}, y={pixel(action.at)[1]}); " if action.at else ""
        return f"{first}pyautogui.typewrite({action.text!r})"
    keys = [KEYS.get(key.lower(), key.lower()) for key in action.text.split("+") if key] or ["+"]
    return f"pyautogui.hotkey({', '.join(map(repr, keys))})" if len(keys) > 1 else f"pyautogui.press({keys[0]!r})"

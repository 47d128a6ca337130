"""What the screens of all such servers have in common: an episode holds a server, and a picture has the size of the first one."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from PIL import Image

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import Action, Point, ScreenObservation
from mmrl_gui.actions import POINTED
from mmrl_gui.hosted.servers import Pool, Server, check_seconds


class Hosted(abc.ABC):
    """Implements `mmrl.api.simulators.gui.Screens`."""

    pages: Sequence[str]
    actions: frozenset[str]

    def __init__(self, servers: Sequence[Server], wait_s: float) -> None:
        """Asks each server for a picture. Raises UserError if one gives none, or one of another size."""
        check_seconds("wait_s", wait_s)
        self.pool, sizes = Pool(servers, wait_s), {}
        for server in servers:
            try:
                sizes[server.address] = self.look(server).size
            except EnvironmentFailed as error:
                raise UserError(f"{error}: start the server, or correct servers") from error
        if len(set(sizes.values())) > 1:
            said = ", ".join(f"{address} {width} x {height}" for address, (width, height) in sizes.items())
            raise UserError(f"the servers' screens have different sizes ({said}): give them one")
        self.size: tuple[int, int] = sizes[servers[0].address]

    @abc.abstractmethod
    def look(self, server: Server) -> Image.Image:
        """The screen now."""

    def seen(self, server: Server) -> Image.Image:
        """The screen now, which must have the size of the first one."""
        picture = self.look(server)
        if picture.size != self.size:
            (width, height), (other, high) = picture.size, self.size
            raise EnvironmentFailed(
                f"{server.address} shows a screen of {width} x {height} pixels, and showed one of {other} x {high}"
            )
        return picture

    def known(self, page: str) -> None:
        if page not in self.pages:
            raise UserError(f"there is no task {page!r:.80}: give one of pages, such as {self.pages[0]!r}")


class HostedScreen(abc.ABC):
    """Implements `mmrl.api.simulators.gui.Screen`: an episode, which takes a server when it starts."""

    def __init__(self, screens: Hosted) -> None:
        self.screens = screens
        self.server: Server | None = None
        self.instruction, self.over = "", False

    def start(self, page: str, seed: int, picture: bool = True) -> ScreenObservation:
        self.screens.known(page)
        if self.server is None:
            self.server = self.screens.pool.take()
        self.instruction, self.over = self.begin(self.server, page, seed), False
        return ScreenObservation(screenshot=self.screens.seen(self.server) if picture else None, instruction=self.instruction)

    def act(self, action: Action) -> ScreenObservation:
        if self.server is None or self.over:
            raise EnvironmentFailed("the episode is over, or never began: call start()")
        why = self.refusal(action)
        if why is None and action.kind == "answer":
            self.over = True
            score = self.end(self.server, action.text)
        else:
            if why is None:
                self.do(self.server, action)
            score = self.score_now(self.server)
            self.over = score >= 1
        return ScreenObservation(
            screenshot=None if self.over else self.screens.seen(self.server),
            instruction=self.instruction,
            reward=score,
            raw_reward=score,
            terminated=self.over,
            success=score >= 1,
            notes=() if why is None else (why,),
        )

    def expert_action(self) -> Action | None:
        """Nobody knows what to do there."""
        return None

    def close(self) -> None:
        if self.server is not None:
            server, self.server = self.server, None
            try:
                self.leave(server)
            finally:
                self.screens.pool.give_back(server)

    def refusal(self, action: Action) -> str | None:
        """Why an action can't be done, or None."""
        if action.kind not in self.screens.actions:
            return f"{action.kind} is nothing that can be done here: {', '.join(sorted(self.screens.actions))}"
        width, height = self.screens.size
        for place in (action.at, action.to):
            if place is not None and not (0 <= place[0] < width and 0 <= place[1] < height):
                return f"the {action.kind} is off the screen"
        if action.at is None and action.kind in POINTED:
            return f"a {action.kind} needs a place"
        if action.to is None and action.kind == "drag":
            return "a drag needs a place where it ends"
        return None

    @abc.abstractmethod
    def begin(self, server: Server, page: str, seed: int) -> str:
        """Begins a task; its instruction."""

    @abc.abstractmethod
    def do(self, server: Server, action: Action) -> None: ...

    @abc.abstractmethod
    def end(self, server: Server, answer: str) -> float:
        """The policy says that it is done; the score, 0 to 1."""

    def score_now(self, server: Server) -> float:
        """The score in the middle of an episode, where it is asked for."""
        return 0.0

    def leave(self, server: Server) -> None:  # noqa: B027, there may be nothing to do
        """Puts away what an episode has set up."""


def pixel(place: Point) -> tuple[int, int]:
    return int(place[0]), int(place[1])

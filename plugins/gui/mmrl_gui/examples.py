"""In-context examples: successful episodes as text before an instruction.

WebWISE (Tao et al., NAACL Findings 2024, arXiv 2310.16042) uses one successful zero-shot trial of its model. Here a model behind
an endpoint plays it (`Trials`), or else the page's expert or a random walk (`Walks`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mmrl import EnvironmentFailed, Message, Prompt, Reply, UserError
from mmrl.api.simulators.gui import ScreenObservation, Screens
from mmrl.api.tasks.image_sources import chance
from mmrl_gui.endpoints import answer_of, endpoint_of
from mmrl_gui.exploring import Step, chooser

STEPS = 10
"""Maximum of turns of an example."""
TRIES = 100
"""Maximum of episodes played for one example."""
LOST = 5
"""Maximum of these that may fail with their browser."""

Plays = Callable[[str, int], str]
"""(page, seed) -> an example's instruction and turns as text; empty if the episode didn't succeed."""
Told = Callable[[ScreenObservation, Step, str], str]
"""(observation, action, instruction) -> a turn of an example as text."""


class Episode(Protocol):
    """A live episode."""

    def step(self, completion: str) -> Reply:
        """Play a turn."""
        ...

    def listed(self) -> str:
        """The list of elements before the last turn."""
        ...

    def close(self) -> None:
        """Release the screen."""
        ...


Begins = Callable[[str, int], tuple[Prompt, Episode]]
"""(page, seed) -> (a prompt without examples, its episode)."""


class Examples:
    """Examples of each page, found on first use, from seeds outside all splits."""

    def __init__(self, plays: Plays, count: int, first: int) -> None:
        """plays: plays an episode. count: examples of a page. first: the first seed."""
        self.plays, self.count, self.first = plays, count, first
        self._found: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, page: str) -> str:
        """The examples of a page; the same ones each time. Raises UserError if too few episodes succeed."""
        with self._lock:
            if page not in self._found:
                self._found[page] = self._explored(page)
            return self._found[page]

    def _explored(self, page: str) -> str:
        found: list[str] = []
        lost = 0
        for seed in range(self.first, self.first + TRIES * self.count):
            try:
                example = self.plays(page, seed)
            except EnvironmentFailed as why:
                lost += 1
                if lost == LOST:
                    raise UserError(f"page {page!r:.60} failed {lost} times during the search for an example: {why}") from None
                continue
            found += [f"An example:\n{example}"] if example else []
            if len(found) == self.count:
                return "\n\n".join(found)
        tried = TRIES * self.count
        raise UserError(
            f"page {page!r:.60}: {len(found)} of {tried} episodes succeeded, and examples = {self.count}: take fewer, "
            "or a page that has an expert"
        )


class Walks:
    """Plays an episode by the page's expert, or at random if there is none."""

    def __init__(self, screens: Callable[[], Screens], told: Told) -> None:
        """screens: makes the screens. told: writes a turn."""
        self.screens, self.told = screens, told

    def __call__(self, page: str, seed: int) -> str:
        screens = self.screens()
        screen = screens.open(elements=True)
        try:
            shown = screen.start(page, seed)
            instruction = shown.instruction
            policy = "random" if screen.expert_action() is None else "expert"
            chooses = chooser(policy, chance(0, "example", page, str(seed)), screens.actions)
            turns: Sequence[str] = ()
            while not shown.terminated and len(turns) < STEPS and (step := chooses(screen, shown)) is not None:
                turns = [*turns, self.told(shown, step, instruction)]
                shown = screen.act(step.action)
        finally:
            screen.close()
        return "\n".join([instruction, *turns]) if shown.success else ""


class Trials:
    """Plays an episode by a model behind an endpoint, which reads what a policy reads, without an example. An episode in which
    something was refused is no example. With `cache` the model's answers are kept on disk, so that a resumed run shows the same
    examples."""

    def __init__(self, options: Mapping[str, Any], begins: Begins) -> None:
        """options: those of `mmrl.api.endpoints.client.ChatEndpoint`. begins: begins an episode. Raises UserError for others."""
        self.endpoint, self.begins = endpoint_of("explorer", options), begins

    def __call__(self, page: str, seed: int) -> str:
        """Raises UserError if the endpoint has no answer."""
        prompt, episode = self.begins(page, seed)
        messages: list[Message] = list(prompt.messages)
        instruction = str(prompt.meta["instruction"])
        turns: list[str] = []
        try:
            while len(turns) < STEPS:
                completion = answer_of(self.endpoint, messages, "explorer", instruction).strip()
                reply = episode.step(completion)
                turns.append(f"{episode.listed()}\n{completion}")
                if reply.terminated or reply.outcome["refused"]:
                    break
                messages += [{"role": "assistant", "content": completion}, *reply.messages]
        finally:
            episode.close()
        won = reply.outcome["success"] and not reply.outcome["refused"]
        return "\n".join([instruction, *turns]) if won else ""

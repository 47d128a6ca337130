"""A task whose episodes are played in another program's environments."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import EnvironmentFailed, NoGold, Prompt, Reply, Task, UserError
from mmrl.api.errors import is_finite
from mmrl.api.tasks.option_checks import LazyPrompts, check_integer, check_split
from mmrl_interop.observations import messages_of
from mmrl_interop.worlds.processes import Session, WorldProcesses

TRIES = 3
"""Attempts to show a first observation."""
HELD_OUT = 10**9
"""Seeds of the split `test` are below, those of `train` are not."""


class WorldTask(Task, abc.ABC):
    """Its rewards are the environment's; evaluations report `interop/return`. Processes start when prompts are read."""

    worlds: WorldProcesses
    repeats = True
    """The same start shows the same text."""

    @abc.abstractmethod
    def starts(self, split: str) -> Sequence[Any]:
        """What tells the starts of a split apart, such as their seeds. Raises UserError for options that can't be."""

    @abc.abstractmethod
    def where(self, start: Any) -> Mapping[str, Any]:
        """The arguments of a session's `start`: plain data."""

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        """The same for every seed: what an episode starts with is its place in the split."""
        check_split(split, self.splits)
        starts = self.starts(split)
        return LazyPrompts(range(len(starts)), lambda index: self._prompt(f"{split}-{index}", self.where(starts[index])))

    def environment(self, prompt: Prompt) -> World:
        return World(self.worlds, prompt, self.repeats)

    def gold(self, prompt: Prompt) -> str:
        if prompt.meta.get("gold") is None:
            raise NoGold("the environment doesn't say what is right")
        return str(prompt.meta["gold"])

    def _prompt(self, id: str, where: Mapping[str, Any]) -> Prompt:
        for last in range(TRIES):
            session = None
            try:
                session = self.worlds.open()
                shown = session.call("start", **where)
                meta = {"where": dict(where), "gold": shown.get("gold"), "state": shown.get("state")}
                return Prompt(id=id, messages=messages_of(shown), meta=meta)
            except (EnvironmentFailed, ValueError) as error:
                if last + 1 == TRIES:
                    raise UserError(f"{id} can't be shown: {error}") from error
            finally:
                if session is not None:
                    session.close()
        raise AssertionError


class World:
    """One episode."""

    waits = True

    def __init__(self, worlds: WorldProcesses, prompt: Prompt, repeats: bool = True) -> None:
        self.worlds, self.prompt, self.repeats = worlds, prompt, repeats
        self._session: Session | None = None
        self._gold: str | None = prompt.meta.get("gold")
        self._state: str | None = prompt.meta.get("state")
        self._total, self._steps = 0.0, 0

    def step(self, completion: str) -> Reply:
        """Raises EnvironmentFailed if the environment raises, hangs, dies, or gives what is no reward or no observation."""
        found = self._started().call("step", completion=completion)
        try:
            return self._reply(found)
        except (ValueError, UserError) as error:
            raise EnvironmentFailed(f"{self.worlds.what}: {error}") from error

    def gold_turn(self) -> str | None:
        """The right next turn, where the environment knows it."""
        return self._gold

    def state_name(self) -> str | None:
        """The state in which the next turn begins, where the environment names it."""
        return self._state

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _started(self) -> Session:
        """The session, which starts with the first turn. Raises EnvironmentFailed."""
        if self._session is not None:
            return self._session
        try:
            session = self.worlds.open()
        except UserError as error:
            raise EnvironmentFailed(str(error)) from error
        try:
            self._start(session)
        except (ValueError, UserError) as error:
            session.close()
            raise EnvironmentFailed(f"{self.worlds.what}: {error}") from error
        except BaseException:
            session.close()
            raise
        self._session = session
        return session

    def _start(self, session: Session) -> None:
        """Start a session. Raises ValueError if it shows something else than the prompt."""
        shown = messages_of(session.call("start", **self.prompt.meta["where"]))
        if self.repeats and Prompt(messages=shown).text != self.prompt.text:
            raise ValueError("it started otherwise than its prompt shows: what is drawn must depend on the seed alone")

    def _reply(self, found: Mapping[str, Any]) -> Reply:
        reward, terminated = found.get("reward"), bool(found.get("terminated"))
        number = float(reward) if isinstance(reward, bool) else reward
        if not is_finite(number):
            raise ValueError(f"its reward is {reward!r:.40} and no number")
        self._gold, self._state = found.get("gold"), found.get("state")
        self._total += float(number)
        self._steps += 1
        own = {str(name): float(value) for name, value in (found.get("outcome") or {}).items() if is_finite(float(value))}
        return Reply(
            messages=[] if terminated else messages_of(found),
            reward=float(number),
            terminated=terminated,
            outcome={**own, "return": self._total, "steps": float(self._steps)},
        )


def check_worlds(timeout_s: float, **counts: int) -> None:
    """Raise UserError for a time limit or for numbers of episodes that can't be."""
    if not is_finite(timeout_s) or not 0 < timeout_s <= 86400:
        raise UserError(f"timeout_s = {timeout_s!r:.40} must be a number of seconds above 0")
    for name, count in counts.items():
        check_integer(name, count, 1, HELD_OUT)


def seeds(split: str, train: int, test: int) -> range:
    """The seeds of a split, which no other has."""
    return range(test) if split == "test" else range(HELD_OUT, HELD_OUT + train)

"""Recorded episodes as demonstrations: their screens are shown again, one after the other, whatever is said to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmrl import Reply, UserError
from mmrl.screens import Action, Shown
from mmrl_gui.tables import tables
from mmrl_gui.trajectories import steps


class Recording:
    """The episodes of a folder that may be imitated."""

    def __init__(self, path: str, only: str = "success") -> None:
        """path: of a recording, see the guide. only: of `trajectories.ONLY`. Raises UserError where there is none."""
        self.path = path
        if not Path(path).expanduser().exists():  # other tables may be names of data sets, which are looked up elsewhere
            raise UserError(f"recording = {path!r:.200} is a folder that doesn't exist: `python -m mmrl_gui.record` makes one")
        self._steps = steps(tables(path, None))
        self.episodes = [own for own in self._steps.episodes if only == "all" or self._steps.won[own[0]]]
        if not self.episodes:
            more = "" if only == "all" else ' that succeeded: take only = "all", or'
            raise UserError(f"recording {path!r:.120} has no episode{more or ':'} record others")

    def __len__(self) -> int:
        return len(self.episodes)

    def won(self, episode: int) -> bool:
        """Whether an episode did what was to be done."""
        return self._steps.won[self.episodes[episode][0]]

    def at(self, episode: int, step: int) -> tuple[Shown, Action]:
        """(what was shown before a step of an episode, what was done)."""
        row = self._steps[self.episodes[episode][step]]
        return Shown(picture=row["image"], instruction=row["goal"]), row["action"]


class Replay:
    """A world that goes on as recorded."""

    def __init__(
        self, recording: Recording, episode: int, message: Callable[[Shown], Mapping[str, Any]], write: Callable[[Action], str]
    ) -> None:
        self.recording, self.episode, self.message, self.write = recording, episode, message, write
        self.steps = 0

    def step(self, completion: str) -> Reply:
        self.steps += 1
        if self.steps == len(self.recording.episodes[self.episode]):
            return Reply(
                terminated=True, outcome={"success": float(self.recording.won(self.episode)), "steps": float(self.steps)}
            )
        return Reply(messages=[self.message(self.recording.at(self.episode, self.steps)[0])])

    def gold_turn(self) -> str:
        return self.write(self.recording.at(self.episode, self.steps)[1])

    def close(self) -> None:
        """Nothing is open."""

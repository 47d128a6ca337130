"""Recorded episodes as demonstrations: their screens are shown again in order, whatever the completions are."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

from mmrl import Reply, UserError
from mmrl.api.media.images import load_image
from mmrl.api.simulators.gui import Action, ScreenObservation
from mmrl.api.tasks.tables import LazyItems
from mmrl_gui.coordinates import Size
from mmrl_gui.episode_layouts import PIXELS
from mmrl_gui.tables import tables
from mmrl_gui.trajectories import checked, steps

PNG_BEGINS, PNG_ENDS = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\0\0\0\0IEND\xaeB`\x82"
"""The signature and the name of the first chunk, which holds the size; the last chunk (PNG, third edition, 5.2 and 11.2)."""


class Recording:
    """The episodes of a folder that can be imitated."""

    def __init__(self, path: str, only: str = "success") -> None:
        """path: of a recording, see the guide. only: of `trajectories.ONLY`.

        Every step that can be imitated is checked, but only the beginning and the end of its picture file are read. Raises
        UserError if there is none, and for the first unusable one, which would end a run in the middle of an episode."""
        self.path = path
        if not os.path.exists(os.path.expanduser(path)):  # other tables may be names of data sets
            raise UserError(f"recording = {path!r:.200} doesn't exist: make it with `mmrl record screens`")
        self._steps = steps(tables(path, None))
        self.episodes = [own for own in self._steps.episodes if only == "all" or self._steps.won[own[0]]]
        if not self.episodes:
            more = "" if only == "all" else ' that succeeded: take only = "all", or'
            raise UserError(f"recording {path!r:.120} has no episode{more or ':'} record others")
        self.sizes = set(LazyItems(self._steps, _usable, [number for own in self.episodes for number in own]))
        """(width, height) of the pictures."""

    def __len__(self) -> int:
        return len(self.episodes)

    def of_size(self, size: Size) -> None:
        """Raises UserError unless all pictures have this size, because positions are written for the size of the screens."""
        for other in self.sizes - {tuple(size)}:
            width, height = other
            raise UserError(
                f"recording {self.path!r:.120} has a picture of {width} x {height}, and the screens are {size[0]} x {size[1]}: "
                "record on these screens, or set their size"
            )

    def won(self, episode: int) -> bool:
        """Whether an episode succeeded."""
        return self._steps.won[self.episodes[episode][0]]

    def at(self, episode: int, step: int) -> tuple[ScreenObservation, Action]:
        """(observation before a step of an episode, action)."""
        row = self._steps[self.episodes[episode][step]]
        return ScreenObservation(screenshot=row["image"], instruction=row["goal"]), row["action"]


def _usable(row: dict[str, Any], number: int) -> Size:
    """The size of the picture of a step that can be imitated. Raises UserError or ValueError for an unusable step."""
    if not row["goal"]:
        raise ValueError("it has no instruction")
    if row["places"] not in (None, PIXELS):
        raise ValueError(f"its places are in {row['places']}, and those of a recording are in pixels")
    size = size_of_whole(row["image"])
    checked(row["action"], row["box"], size)
    return size


def size_of_whole(image: Any) -> Size:
    """(width, height) of a picture. Of a PNG file only its beginning and its end are read; the end is missing in a truncated
    file. Other pictures are decoded. Raises UserError for a broken one."""
    if isinstance(image, str):
        with contextlib.suppress(OSError), open(image, "rb") as file:  # decoding reports the error
            begins = file.read(24)
            file.seek(-len(PNG_ENDS), os.SEEK_END)
            if begins.startswith(PNG_BEGINS) and file.read() == PNG_ENDS:
                width, height = struct.unpack(">II", begins[16:])
                return width, height
    return load_image(image).size


class Replay:
    """An environment that replays a recording."""

    def __init__(
        self,
        recording: Recording,
        episode: int,
        message: Callable[[ScreenObservation, Action], Mapping[str, Any]],
        write: Callable[[Action], str],
    ) -> None:
        """message: (screen, action before it) -> the message of that turn. write: an action -> a completion."""
        self.recording, self.episode, self.message, self.write = recording, episode, message, write
        self.steps = 0

    def step(self, completion: str) -> Reply:
        self.steps += 1
        if self.steps == len(self.recording.episodes[self.episode]):
            return Reply(
                terminated=True, outcome={"success": float(self.recording.won(self.episode)), "steps": float(self.steps)}
            )
        (_, did), (shown, _) = (self.recording.at(self.episode, step) for step in (self.steps - 1, self.steps))
        return Reply(messages=[self.message(shown, did)])

    def gold_turn(self) -> str:
        return self.write(self.recording.at(self.episode, self.steps)[1])

    def close(self) -> None:
        """Nothing to close."""

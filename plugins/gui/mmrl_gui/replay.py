"""Recorded episodes as demonstrations: their screens are shown again, one after the other, whatever is said to them."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmrl import Reply, UserError
from mmrl.api.media.images import load_image
from mmrl.api.simulators.gui import Action, ScreenObservation
from mmrl.api.tasks.tables import LazyItems
from mmrl_gui.frames import Size
from mmrl_gui.tables import tables
from mmrl_gui.trajectories import checked, steps

PNG_BEGINS, PNG_ENDS = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\0\0\0\0IEND\xaeB`\x82"
"""The signature and the name of the first chunk, which holds the size; the last chunk (PNG, third edition, 5.2 and 11.2)."""


class Recording:
    """The episodes of a folder that may be imitated."""

    def __init__(self, path: str, only: str = "success") -> None:
        """path: of a recording, see the guide. only: of `trajectories.ONLY`.

        Every step that may be imitated is read, but of its picture the ends alone. Raises UserError where there is none, and
        for the first that can't be used: it would end a run in the midst of an episode."""
        self.path = path
        if not Path(path).expanduser().exists():  # other tables may be names of data sets, which are looked up elsewhere
            raise UserError(f"recording = {path!r:.200} is a folder that doesn't exist: `mmrl record screens` makes one")
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
        """Raises UserError unless all pictures have this size: places are written in the numbers of the screens."""
        for other in self.sizes - {tuple(size)}:
            width, height = other
            raise UserError(
                f"recording {self.path!r:.120} has a picture of {width} x {height}, and the screens are {size[0]} x {size[1]}: "
                "record on these screens, or set their size"
            )

    def won(self, episode: int) -> bool:
        """Whether an episode did what was to be done."""
        return self._steps.won[self.episodes[episode][0]]

    def at(self, episode: int, step: int) -> tuple[ScreenObservation, Action]:
        """(what was shown before a step of an episode, what was done)."""
        row = self._steps[self.episodes[episode][step]]
        return ScreenObservation(screenshot=row["image"], instruction=row["goal"]), row["action"]


def _usable(row: dict[str, Any], number: int) -> Size:
    """The size of the picture of a step that can be imitated. Raises UserError or ValueError for another."""
    if not row["goal"]:
        raise ValueError("it has no instruction")
    size = size_of_whole(row["image"])
    checked(row["action"], row["box"], size)
    return size


def size_of_whole(image: Any) -> Size:
    """(width, height) of a picture. Of a PNG file only its beginning and its end are read, which is missing where it was cut off;
    whatever else is decoded. Raises UserError that says what is wrong with it."""
    if isinstance(image, str):
        with contextlib.suppress(OSError), open(image, "rb") as file:  # which decoding then tells
            begins = file.read(24)
            file.seek(-len(PNG_ENDS), os.SEEK_END)
            if begins.startswith(PNG_BEGINS) and file.read() == PNG_ENDS:
                width, height = struct.unpack(">II", begins[16:])
                return width, height
    return load_image(image).size


class Replay:
    """A world that goes on as recorded."""

    def __init__(
        self,
        recording: Recording,
        episode: int,
        message: Callable[[ScreenObservation], Mapping[str, Any]],
        write: Callable[[Action], str],
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

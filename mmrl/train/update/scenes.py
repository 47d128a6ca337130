"""What a policy saw in the episodes of a memory: pictures, states and instructions, for policies whose eyes are trained."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.train.update.digested import read, write


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """The T + 1 observations of an episode of T transitions."""

    seen: Observation
    first: int
    """Number of its first transition, counted from the first that was ever added."""
    row: int
    """Number of its first observation, likewise."""

    @property
    def end(self) -> int:
        return self.first + len(self.seen) - 1


def observations(track: TrajectoryData) -> Observation:
    """The T + 1 observations of an episode."""
    return Observation(images=track.images, state=track.state, instructions=track.told)


class Scenes:
    """The observations of the episodes that are in a `Replay` of the same capacity, to which each was added at the same time. An
    episode whose transitions are all overwritten is dropped."""

    def __init__(self, capacity: int) -> None:
        """capacity: transitions."""
        self.capacity, self.added, self.rows = capacity, 0, 0
        self._scenes: deque[_Scene] = deque()

    def __len__(self) -> int:
        """Number of observations."""
        return sum(len(scene.seen) for scene in self._scenes)

    def add(self, track: TrajectoryData, first: int = 0, end: int | None = None) -> None:
        """Append an episode's observations, in main memory. first, end: only those of the transitions from one up to the other,
        that one excluded."""
        seen = observations(track)
        if (first, end) != (0, None):
            seen = seen.rows(torch.arange(first, (len(seen) - 1 if end is None else end) + 1))
        self._append(
            replace(
                seen,
                images={camera: rows.cpu().clone() for camera, rows in seen.images.items()},
                state=None if seen.state is None else seen.state.cpu().clone(),
            )
        )
        while self._scenes[0].end <= self.added - self.capacity:
            self._scenes.popleft()

    def _append(self, seen: Observation) -> None:
        self._scenes.append(_Scene(seen=seen, first=self.added, row=self.rows))
        self.added, self.rows = self.added + len(seen) - 1, self.rows + len(seen)

    def rows_of(self, places: torch.Tensor, after: bool = False) -> list[int]:
        """The numbers of the observations before the transitions at these places of the memory, or after them."""
        last = self.added - 1
        numbers = (last - (last - places) % self.capacity).tolist()
        found = []
        for number in numbers:
            scene = self._holding(number, "first")
            found.append(scene.row + number - scene.first + after)
        return found

    def shown(self, rows: Iterable[int]) -> Observation:
        """The observations of these numbers, in this order."""
        taken = [(scene := self._holding(row, "row"), row - scene.row) for row in rows]
        cameras = taken[0][0].seen.images
        states = [scene.seen.state[at] for scene, at in taken if scene.seen.state is not None]
        return Observation(
            images={camera: torch.stack([scene.seen.images[camera][at] for scene, at in taken]) for camera in cameras},
            state=torch.stack(states) if states else None,
            instructions=[scene.seen.instructions[at] for scene, at in taken],
        )

    def _holding(self, number: int, of: str) -> _Scene:
        """The episode with the transition (`first`) or the observation (`row`) of this number."""
        low, high = 0, len(self._scenes)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if getattr(self._scenes[middle], of) <= number else (low, middle)
        return self._scenes[low]

    # -- resume -----------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write all of it to a file, atomically."""
        tensors: dict[str, torch.Tensor] = {}
        told: list[list[tuple[str, int]]] = []
        for n, scene in enumerate(self._scenes):
            tensors |= {f"{n}/image/{camera}": rows for camera, rows in scene.seen.images.items()}
            if scene.seen.state is not None:
                tensors[f"{n}/state"] = scene.seen.state
            told.append([(text, len(list(same))) for text, same in groupby(scene.seen.instructions)])
        first = (self._scenes[0].first, self._scenes[0].row) if self._scenes else (self.added, self.rows)
        write(path, tensors, {"told": json.dumps(told), "first": json.dumps(first), "capacity": str(self.capacity)})

    def load(self, path: Path) -> None:
        """Go on with what `save` wrote. Raises UserError for a file that is torn, or of another capacity."""
        marks, tensors = read(path, "file of scenes", "runs/NAME/checkpoints/step-.../scenes.safetensors")
        if int(marks["capacity"]) != self.capacity:
            raise UserError(f"{path} has capacity = {marks['capacity']}, and this run {self.capacity}: make them equal")
        self._scenes.clear()
        self.added, self.rows = json.loads(marks["first"])
        for n, told in enumerate(json.loads(marks["told"])):
            head = f"{n}/image/"
            images = {name.removeprefix(head): x for name, x in tensors.items() if name.startswith(head)}
            stretches = told if isinstance(told[0], list) else [told]  # written when an episode had one instruction
            texts = [text for text, count in stretches for _ in range(count)]
            self._append(Observation(images=images, state=tensors.get(f"{n}/state"), instructions=texts))


class BothScenes:
    """What was seen in the two memories of which batches are mixed: the run's own and the offline one, see `draw_mixed`."""

    def __init__(self, online: Scenes, offline: Scenes | None = None) -> None:
        self.online, self.offline = online, offline

    def keys(self, places_n: torch.Tensor, after: bool) -> list[tuple[bool, int]]:
        """(whether it is offline, number of the observation) before or after the transitions at these places of a draw."""
        is_old = places_n < 0
        rows = torch.zeros(len(places_n), dtype=torch.int64)
        for scenes, which, places in ((self.online, ~is_old, places_n), (self.offline, is_old, -1 - places_n)):
            if which.any():
                assert scenes is not None
                rows[which] = torch.tensor(scenes.rows_of(places[which], after))
        return list(zip(is_old.tolist(), rows.tolist(), strict=True))

    def shown(self, keys: Sequence[tuple[bool, int]]) -> Observation:
        """The observations, in order."""
        parts = []
        for scenes, wanted in ((self.online, False), (self.offline, True)):
            rows = [row for is_old, row in keys if is_old == wanted]
            if rows and scenes is not None:
                parts.append(scenes.shown(rows))
        order = sorted(range(len(keys)), key=lambda n: keys[n][0])  # stable: those of the run, then the offline ones
        back = torch.empty(len(keys), dtype=torch.int64)
        back[torch.tensor(order)] = torch.arange(len(keys))
        return together(parts).rows(back)


def together(parts: list[Observation]) -> Observation:
    """Observations of the same simulator, one after the other."""
    states = [part.state for part in parts if part.state is not None]
    return Observation(
        images={camera: torch.cat([part.images[camera] for part in parts]) for camera in parts[0].images},
        state=torch.cat(states) if states else None,
        instructions=[text for part in parts for text in part.instructions],
    )

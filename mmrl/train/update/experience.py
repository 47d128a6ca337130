"""The episodes that a policy learns from: what was seen, what was done and by whom, and how it ended."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch

from mmrl.algorithms.recap import returns_to_go
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.train.update.digested import read, write


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """An episode of T calls of a policy and L actions."""

    task: str
    longest: int
    """Steps of the task's longest episode."""
    success: bool
    instruction: str
    """Without a condition."""
    images: dict[str, torch.Tensor]
    """Camera -> uint8 [T, H, W, 3]: the images before each call."""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """`features` [T, F]; `steps` int64 [T], the actions of each call that were carried out; `actions` [L, A], in [-1, 1];
    `others` bool [L], which of them an expert or a person carried out, and `corrected` bool [T], the calls that have such an
    action; and, if the simulator has one, its `state` [T, S]."""

    instructions: tuple[str, ...] = ()
    """Without a condition, one for each call, if they differ."""

    def __len__(self) -> int:
        return len(self.tensors["steps"])

    def told(self, call: int) -> str:
        """The instruction before a call."""
        return self.instructions[call] if self.instructions else self.instruction

    def returns(self, failure: float) -> torch.Tensor:
        """float32 [T]: see `returns_to_go`."""
        return returns_to_go(self.tensors["steps"], self.success, longest=self.longest, failure=failure)

    def chunk(self, call: int, ahead: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(the `ahead` actions from this call on [ahead, A], the last one repeated after the end, or after the part with one
        instruction; bool [ahead]: not repeated)."""
        actions, first = self.tensors["actions"], int(self.tensors["steps"][:call].sum())
        until = next((n for n in range(call, len(self)) if self.told(n) != self.told(call)), len(self))
        at, end = first + torch.arange(ahead), int(self.tensors["steps"][:until].sum())
        return actions[at.clamp_max(end - 1)], at < end

    def by_others(self, ahead: int) -> list[int]:
        """The calls all actions of whose `chunk` an expert or a person carried out, in order."""
        ends = [0, *self.tensors["steps"].cumsum(0).tolist()]
        own = [0, *(~self.tensors["others"]).cumsum(0).tolist()]  # the policy's actions up to each place
        found, until = list[int](), ends[-1]
        for call in reversed(range(len(self))):
            if call + 1 < len(self) and self.told(call) != self.told(call + 1):
                until = ends[call + 1]
            if own[ends[call]] == own[min(ends[call] + ahead, until)]:
                found.append(call)
        return found[::-1]


def lived(
    track: TrajectoryData, features: torch.Tensor, *, task: str, longest: int, success: bool, expert: bool = False
) -> Lived:
    """What is remembered of a played episode, whose instruction has no condition. features: [T + 1, F]. expert: an expert did all
    of it."""
    assert track.actions_TKA is not None
    done_TK = track.valid_TK.cpu()
    others_TK = torch.full_like(done_TK, expert) if track.corrected_TK is None or expert else track.corrected_TK.cpu()
    tensors = {
        "features": features[:-1].cpu(),
        "steps": done_TK.sum(1),
        "actions": track.actions_TKA.cpu()[done_TK].clamp(-1, 1),
        "others": others_TK[done_TK],
        "corrected": others_TK.any(1),
    }
    if track.state is not None:
        tensors["state"] = track.state[:-1].cpu().clone()
    images = {camera: rows[:-1].cpu().clone() for camera, rows in track.images.items()}
    return Lived(
        task=task,
        longest=longest,
        success=success,
        instruction=track.instruction,
        instructions=track.instructions[:-1],
        images=images,
        tensors=tensors,
    )


class Experience:
    """The newest episodes of a run, and episodes that were given and stay."""

    def __init__(self, capacity: int) -> None:
        """capacity: calls of the run's own episodes; older ones are dropped as a whole."""
        self.capacity = capacity
        self.own: deque[Lived] = deque()
        self.given: list[Lived] = []

    def __iter__(self) -> Iterator[Lived]:
        return chain(self.given, self.own)

    def __len__(self) -> int:
        """Number of calls."""
        return sum(map(len, self))

    def add(self, episode: Lived) -> None:
        self.own.append(episode)
        while len(self.own) > 1 and sum(map(len, self.own)) > self.capacity:
            self.own.popleft()

    def joined(self, name: str) -> torch.Tensor:
        """One of the tensors of all episodes, one after the other."""
        return torch.cat([episode.tensors[name] for episode in self])

    def calls(self) -> list[tuple[Lived, int]]:
        """(episode, index) of each call, in the order of `joined`."""
        return [(episode, call) for episode in self for call in range(len(episode))]

    def save(self, path: Path) -> None:
        """Write the run's own episodes to a file, atomically."""
        tensors: dict[str, torch.Tensor] = {}
        told: list[list[str | int]] = []
        for n, episode in enumerate(self.own):
            tensors |= {f"{n}/{name}": x.contiguous() for name, x in episode.tensors.items()}
            tensors |= {f"{n}/image/{camera}": x.contiguous() for camera, x in episode.images.items()}
            told.append([episode.task, episode.longest, episode.success, episode.instruction, *episode.instructions])
        write(path, tensors, {"told": json.dumps(told), "capacity": str(self.capacity)})

    def load(self, path: Path) -> None:
        """Go on with what `save` wrote. Raises UserError for a file that is torn, or of another capacity."""
        marks, tensors = read(path, "file of experience", "runs/NAME/checkpoints/step-.../experience.safetensors")
        if int(marks["capacity"]) != self.capacity:
            raise UserError(f"{path} has capacity = {marks['capacity']}, and this run {self.capacity}: make them equal")
        self.own.clear()
        for n, (task, longest, success, instruction, *instructions) in enumerate(json.loads(marks["told"])):
            mine = {name.removeprefix(f"{n}/"): x for name, x in tensors.items() if name.startswith(f"{n}/")}
            images = {name.removeprefix("image/"): x for name, x in mine.items() if name.startswith("image/")}
            rest = {name: x for name, x in mine.items() if not name.startswith("image/")}
            self.own.append(
                Lived(
                    task=task,
                    longest=longest,
                    success=success,
                    instruction=instruction,
                    instructions=tuple(instructions),
                    images=images,
                    tensors=rest,
                )
            )


def shown(calls: list[tuple[Lived, int]], instructions: list[str]) -> Observation:
    """What was seen before these calls, with these instructions."""
    cameras = calls[0][0].images
    states = [episode.tensors["state"][at] for episode, at in calls if "state" in episode.tensors]
    return Observation(
        images={camera: torch.stack([episode.images[camera][at] for episode, at in calls]) for camera in cameras},
        state=torch.stack(states) if states else None,
        instructions=instructions,
    )

"""A history of observations: the pictures of earlier calls stand beside the present ones, as cameras of their own.

In the first calls of an episode, the first picture stands for those before it (Szot et al., LLaRP, section 3, reads a history of
observations; with a fixed number of them an episode's length costs nothing).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mmrl.api.simulators.types import Observation, TrajectoryData

if TYPE_CHECKING:
    import torch

_EARLIER = re.compile(r".+, [0-9]+ before")


def earlier(camera: str, calls: int) -> str:
    """The name under which a camera's picture of so many calls before is kept; 0: the camera's own."""
    return f"{camera}, {calls} before" if calls else camera


def is_earlier(camera: str) -> bool:
    """Whether a name is one of `earlier`."""
    return _EARLIER.fullmatch(camera) is not None


def present(images: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The pictures of the cameras themselves, without earlier ones."""
    return {name: rows for name, rows in images.items() if not is_earlier(name)}


def follow(seen: Observation, before: Observation | None, fresh_N: torch.Tensor, calls: int) -> Observation:
    """All N present observations with those of so many calls before. before: the result for the last call; None for the first.
    fresh_N: bool on the host, environments whose episode begins here."""
    if not calls:
        return seen
    images = dict(seen.images)
    fresh_N111 = fresh_N.to(seen.device)[:, None, None, None]
    for camera, shown in seen.images.items():
        for k in range(1, calls + 1):
            name = earlier(camera, k)
            images[name] = shown if before is None else shown.where(fresh_N111, before.images[earlier(camera, k - 1)])
    return replace(seen, images=images)


def in_track(track: TrajectoryData, calls: int, stride: int) -> TrajectoryData:
    """An episode with the pictures of so many calls before each step. stride: steps of the episode between two calls."""
    import torch

    if not calls:
        return track
    shown = present(track.images)
    images = dict(shown)
    for camera, rows in shown.items():
        at = torch.arange(len(rows), device=rows.device)
        images |= {earlier(camera, k): rows[(at - k * stride).clamp_min(0)] for k in range(1, calls + 1)}
    return replace(track, images=images)

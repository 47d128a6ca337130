"""A history of observations: the pictures of earlier moments stand beside the present ones, as cameras of their own. A moment is
a call of the policy, or, with the states, a step of the simulator.

In the first moments of an episode, the first picture stands for those before it (Szot et al., LLaRP, section 3, reads a history
of observations; with a fixed number of them an episode's length costs nothing).
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
    """The name under which a camera's picture of so many moments before is kept; 0: the camera's own."""
    return f"{camera}, {calls} before" if calls else camera


def is_earlier(camera: str) -> bool:
    """Whether a name is one of `earlier`."""
    return _EARLIER.fullmatch(camera) is not None


def present(images: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The pictures of the cameras themselves, without earlier ones."""
    return {name: rows for name, rows in images.items() if not is_earlier(name)}


def follow(seen: Observation, before: Observation | None, fresh_N: torch.Tensor, calls: int, states: bool = False) -> Observation:
    """All N present observations with those of so many moments before. before: the result for the last moment; None for the
    first. fresh_N: bool on the host, environments whose episode begins here. states: those of the moments follow each other in
    the state, the present one last."""
    import torch

    if not calls:
        return seen
    images = dict(seen.images)
    fresh_N111 = fresh_N.to(seen.device)[:, None, None, None]
    for camera, shown in seen.images.items():
        for k in range(1, calls + 1):
            name = earlier(camera, k)
            images[name] = shown if before is None else shown.where(fresh_N111, before.images[earlier(camera, k - 1)])
    state = seen.state
    if states and state is not None:
        first, size = state.repeat(1, calls + 1), state.shape[1]
        past = first[:, size:] if before is None or before.state is None else before.state[:, size:]
        state = torch.cat([past.where(~fresh_N.to(seen.device)[:, None], first[:, size:]), state], 1)
    return replace(seen, images=images, state=state)


def in_track(track: TrajectoryData, calls: int, stride: int, states: bool = False) -> TrajectoryData:
    """An episode with what was seen so many moments before each step, see `follow`. stride: steps of the episode between two
    moments."""
    import torch

    if not calls:
        return track
    shown = present(track.images)
    images = dict(shown)
    for camera, rows in shown.items():
        at = torch.arange(len(rows), device=rows.device)
        images |= {earlier(camera, k): rows[(at - k * stride).clamp_min(0)] for k in range(1, calls + 1)}
    state = track.state
    if states and state is not None:
        at = torch.arange(len(state), device=state.device)
        state = torch.cat([state[(at - k * stride).clamp_min(0)] for k in range(calls, -1, -1)], 1)
    return replace(track, images=images, state=state)

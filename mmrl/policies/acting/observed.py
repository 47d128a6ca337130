"""The parts of an observation that a policy reads, with errors for simulators that lack them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData


def picture_of(seen: Observation | TrajectoryData, camera: str) -> torch.Tensor:
    """uint8 [n, H, W, 3] of a camera, by default the first. Raises UserError if there is no such camera."""
    if not seen.images:
        raise UserError("the simulator shows no picture: give it a camera, or take a policy that reads the state alone")
    name = camera or next(iter(seen.images))
    if name not in seen.images:
        raise UserError(
            f"policy.options.camera = {camera!r} is not a camera of the simulator: choose one of {', '.join(seen.images)}"
        )
    return seen.images[name]


def cameras_of(seen: Observation | TrajectoryData, cameras: Sequence[str], missing: Sequence[str]) -> list[str]:
    """The cameras to look through: the given ones, or `missing` where none are. Raises UserError for one that isn't there."""
    if not seen.images:
        raise UserError("the simulator shows no picture: give it a camera, or take a policy that reads the state alone")
    names = list(cameras or missing)
    for name in names:
        if name not in seen.images:
            raise UserError(
                f"policy.options.cameras has {name!r}, which the simulator doesn't have: it has {', '.join(seen.images)}"
            )
    return names


def state_of(seen: Observation | TrajectoryData, size: int, moments: int = 1) -> torch.Tensor:
    """float32 [n, moments * size]. Raises UserError if the simulator's state has another size."""
    if seen.state is None or seen.state.shape[1] != moments * size:
        there = "no state" if seen.state is None else f"a state of {seen.state.shape[1] // moments}"
        raise UserError(f"policy.options.state = {size}, and the simulator shows {there}: make them equal")
    return seen.state


def present_state_of(seen: Observation | TrajectoryData, size: int, moments: int) -> torch.Tensor:
    """float32 [n, size]: the last of these moments; see `state_of`."""
    return state_of(seen, size, moments)[:, (moments - 1) * size :]

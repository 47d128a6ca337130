"""Checks of a simulator's outputs before they are used: shapes, dtypes, names, ranges.

The engine checks every step with these, and so does the conformance kit. N environments; H, W, S are those of the simulator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from mmrl.api.errors import PluginError
from mmrl.api.simulators.types import Observation, Transition

ROUNDING = 1e-3
"""A part may be outside [0, 1] by this much."""


def check_observation(who: str, seen: Any, n: int, like: Observation | None) -> None:
    """PluginError unless it is an observation of n environments, with the cameras, sizes and state of an earlier one."""
    if not isinstance(seen, Observation):
        raise PluginError(f"{who} gave a {type(seen).__name__} in place of a mmrl.api.simulators.types.Observation")
    if like is not None and seen.images.keys() != like.images.keys():
        raise PluginError(f"{who} showed the cameras {sorted(like.images)}, and now shows {sorted(seen.images)}")
    for camera, rows in seen.images.items():
        size = ("H", "W") if like is None else tuple(like.images[camera].shape[1:3])
        check_tensor(who, f"camera {camera!r}", rows, torch.uint8, (n, *size, 3))
    if like is not None and (seen.state is None) != (like.state is None):
        raise PluginError(f"{who} gives a state in some observations only: give one always, or never")
    if seen.state is not None:
        width = "S" if like is None or like.state is None else like.state.shape[1]
        check_tensor(who, "state", seen.state, torch.float32, (n, width))
    if len(seen.instructions) != n or not all(isinstance(text, str) for text in seen.instructions):
        raise PluginError(f"{who} gave the instructions {list(seen.instructions)!r:.80}, not {n} texts")


def check_transition(who: str, found: Any, n: int, like: Observation | None, parts: Collection[str] | None) -> None:
    """PluginError unless it is a transition of all n environments. like: an earlier observation. parts: the names of the step
    before."""
    if not isinstance(found, Transition):
        raise PluginError(f"{who} gave a {type(found).__name__} in place of a mmrl.api.simulators.types.Transition")
    check_observation(who, found.observation, n, like)
    check_tensor(who, "reward_N", found.reward_N, torch.float32, (n,))
    for name in ("terminated_N", "truncated_N", "success_N"):
        check_tensor(who, name, getattr(found, name), torch.bool, (n,))
    if found.lost_N is not None:
        check_tensor(who, "lost_N", found.lost_N, torch.bool, (n,))
    if found.interventions_NA is not None:
        check_tensor(who, "interventions_NA", found.interventions_NA, torch.float32, (n, "A"))
    if parts is not None and set(found.parts) != set(parts):
        raise PluginError(
            f"{who} gave the parts {sorted(parts)}, and now gives {sorted(found.parts)}: name the same in every step"
        )
    for name, rows in found.parts.items():
        check_tensor(who, f"part {name!r}", rows, torch.float32, (n,))


def check_interventions(who: str, taken_nA: torch.Tensor, dims: int) -> None:
    """PluginError unless each row is an action of so many numbers, or NaN. taken_nA: the rows of sound environments."""
    if taken_nA.shape[1] != dims:
        raise PluginError(f"{who}: a row of interventions_NA has {taken_nA.shape[1]} numbers, and an action has {dims}")
    for row in taken_nA[~taken_nA.isnan().all(1)].tolist():
        if not all(abs(number) <= 1 + ROUNDING for number in row):
            raise PluginError(f"{who}: a row of interventions_NA is {row}: give numbers from -1 to 1, or NaN in all")


def check_parts(who: str, parts: Mapping[str, torch.Tensor], sound_N: torch.Tensor) -> None:
    """PluginError unless parts are within 0 and 1 where an episode goes on; rows of the others mean nothing."""
    for name, part_N in parts.items():
        odd = part_N[sound_N & ~((part_N > -ROUNDING) & (part_N < 1 + ROUNDING))]  # NaN is odd, too
        if len(odd):
            raise PluginError(f"{who}: part {name!r} is {float(odd[0]):g}, and must be from 0 to 1")


def check_reward(who: str, reward_N: torch.Tensor, sound_N: torch.Tensor) -> None:
    """PluginError unless rewards are finite where an episode goes on."""
    if not torch.isfinite(reward_N[sound_N]).all():
        raise PluginError(f"{who} gave a reward that is not finite: check it for divisions by 0")


def check_tensor(who: str, what: str, rows: Any, dtype: torch.dtype, shape: tuple[int | str, ...]) -> None:
    """PluginError unless it is a tensor of this dtype and shape; a letter in the shape matches any size."""
    if not isinstance(rows, torch.Tensor):
        raise PluginError(f"{who} gave a {type(rows).__name__} for {what}, not a tensor")
    fixed = [(i, want) for i, want in enumerate(shape) if not isinstance(want, str)]
    if rows.dtype != dtype or rows.ndim != len(shape) or any(rows.shape[i] != want for i, want in fixed):
        wanted = ", ".join(map(str, shape))
        raise PluginError(f"{who}: {what} is {rows.dtype} {list(rows.shape)}, and must be {dtype} [{wanted}]")

"""What a simulator gave, held against the contract before anything is made of it: shapes, dtypes and names."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from mmrl.simulation import Observation, Transition
from mmrl.targets import PluginError


def check_observation(who: str, seen: Any, n: int, like: Observation | None) -> None:
    """PluginError unless it is an observation of n environments, with the cameras, sizes and state of an earlier one."""
    if not isinstance(seen, Observation):
        raise PluginError(f"{who} gave a {type(seen).__name__} in place of a mmrl.simulation.Observation")
    if like is not None and seen.images.keys() != like.images.keys():
        raise PluginError(f"{who} showed the cameras {sorted(like.images)}, and now shows {sorted(seen.images)}")
    for camera, rows in seen.images.items():
        size = (rows if like is None else like.images[camera]).shape[1:3] if isinstance(rows, torch.Tensor) else ()
        _check(who, f"camera {camera!r}", rows, n, torch.uint8, (*size, 3))
    if like is not None and (seen.state is None) != (like.state is None):
        raise PluginError(f"{who} shows a state now and then: give one always, or never")
    if seen.state is not None:
        width = getattr(seen.state if like is None else like.state, "shape", ())[1:2]
        _check(who, "state", seen.state, n, torch.float32, tuple(width) or (0,))
    if len(seen.instructions) != n or not all(isinstance(text, str) for text in seen.instructions):
        raise PluginError(f"{who} gave the instructions {list(seen.instructions)!r:.80}, and not {n} texts")


def check_transition(who: str, found: Any, n: int, like: Observation, parts: Collection[str] | None) -> None:
    """PluginError unless it is a transition of all n environments. parts: the names of the step before."""
    if not isinstance(found, Transition):
        raise PluginError(f"{who} gave a {type(found).__name__} in place of a mmrl.simulation.Transition")
    check_observation(who, found.observation, n, like)
    _check(who, "reward_N", found.reward_N, n, torch.float32, ())
    for name in ("terminated_N", "truncated_N", "success_N"):
        _check(who, name, getattr(found, name), n, torch.bool, ())
    if found.lost_N is not None:
        _check(who, "lost_N", found.lost_N, n, torch.bool, ())
    if parts is not None and set(found.parts) != set(parts):
        raise PluginError(
            f"{who} gave the parts {sorted(parts)}, and now gives {sorted(found.parts)}: name the same in every step"
        )
    for name, rows in found.parts.items():
        _check(who, f"part {name!r}", rows, n, torch.float32, ())


def _check(who: str, what: str, rows: Any, n: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(rows, torch.Tensor):
        raise PluginError(f"{who} gave a {type(rows).__name__} for {what}, and not a tensor")
    if rows.dtype != dtype or tuple(rows.shape) != (n, *shape):
        raise PluginError(f"{who}: {what} is {rows.dtype} {list(rows.shape)}, and must be {dtype} {[n, *shape]}")

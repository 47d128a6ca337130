"""Checks of a simulator's arguments: environments, seeds, variants, actions, states.

A plugin's simulator calls them first in `reset`, `step` and `restore`. They raise UserError for invalid arguments.
N environments, n of them chosen, A action dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError
from mmrl.api.transfer import upload, upload_one

if TYPE_CHECKING:
    import torch


def check_count(what: str, num_envs: Any) -> None:
    """Raise UserError unless `num_envs` is a positive integer. what: begins the message, such as the simulator's id."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise UserError(f"{what}: num_envs = {num_envs!r} must be a whole number of 1 or more")


def checked_ids(env_ids_n: Any, num_envs: int, device: torch.device | str) -> torch.Tensor:
    """int64 [n] on the device: the indices of the chosen environments, each once; None chooses all. Raises UserError for
    anything else."""
    import torch

    if env_ids_n is None:
        return torch.arange(num_envs, device=device)
    ids_n = _tensor(env_ids_n)  # mostly on the host, where looking at it is free
    if ids_n.dim() != 1 or ids_n.dtype != torch.int64 or len(ids_n.unique()) < len(ids_n):
        raise UserError(f"env_ids_n must be int64 [n] without repetitions, not {ids_n.dtype} {list(ids_n.shape)}")
    if len(ids_n) and not 0 <= int(ids_n.min()) <= int(ids_n.max()) < num_envs:
        raise UserError(f"env_ids_n = {ids_n.tolist()} must be from 0 to {num_envs - 1}: there are {num_envs} environments")
    return upload_one(ids_n, device)


def checked_seeds(seeds_n: Any, n: int, device: torch.device | str) -> torch.Tensor:
    """int64 [n] on the device: the seeds of n environments. Raises UserError for another shape or dtype."""
    import torch

    seeds_n = _tensor(seeds_n)
    if seeds_n.shape != (n,) or seeds_n.dtype != torch.int64:
        raise UserError(f"the seeds of {n} environments must be int64 [{n}], not {seeds_n.dtype} {list(seeds_n.shape)}")
    return upload_one(seeds_n, device)


def check_variant(what: str, variant: str | None, known: Sequence[str]) -> None:
    """Raise UserError for a variant that the simulator doesn't have. None is the environment of training."""
    if variant is not None and variant not in known:
        raise UserError(f"{what} has no variant {variant!r}: it has {', '.join(known) or 'none'}")


def checked_actions(
    actions_NA: Any, active_N: Any, num_envs: int, dims: int, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 [N, A] in [-1, 1], bool [N]) on the device: actions are clipped, and rows of inactive environments are 0. Raises
    UserError for wrong shapes or dtypes, or NaN in an active row."""
    import torch

    actions_NA, active_N = _tensor(actions_NA), _tensor(active_N)
    expected = [num_envs, dims]
    if list(actions_NA.shape) != expected or not actions_NA.is_floating_point():
        raise UserError(f"actions must be float32 {expected}, not {actions_NA.dtype} {list(actions_NA.shape)}")
    if active_N.shape != (num_envs,) or active_N.dtype != torch.bool:
        raise UserError(f"active must be bool [{num_envs}], not {active_N.dtype} {list(active_N.shape)}")
    given = upload({"actions": actions_NA, "active": active_N}, device)
    actions_NA, active_N = given["actions"], given["active"]
    nan_N = actions_NA.isnan().any(1) & active_N
    if nan_N.any():
        raise UserError(f"the action of environment {int(nan_N.nonzero()[0])} has NaN: check the policy's output")
    return torch.where(active_N[:, None], actions_NA.detach().float().clamp(-1, 1), 0.0), active_N


def check_states(what: str, n: int, states: int) -> None:
    """Raise UserError unless there are as many states as environments to restore."""
    if states != n:
        raise UserError(f"{what}: {n} environments can't be put into {states} states: give one state for each")


def _tensor(given: Any) -> torch.Tensor:
    import torch

    return given if isinstance(given, torch.Tensor) else torch.as_tensor(given, device="cpu")

"""What a simulator is asked, checked before it does anything: environments, seeds, variants, actions, states.

For simulators of plugins: each begins its `reset`, `step` and `restore` with these. What can't be meant is a UserError.
N environments, n of them chosen, A action dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    import torch


def check_count(what: str, num_envs: Any) -> None:
    """Refuse a number of environments that is none. what: begins the message, such as the simulator's id."""
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise UserError(f"{what}: num_envs = {num_envs!r} must be a whole number of 1 or more")


def checked_ids(env_ids_n: Any, num_envs: int, device: torch.device | str) -> torch.Tensor:
    """int64 [n] on the device: the environments that are meant, each once; all where None was asked for."""
    import torch

    if env_ids_n is None:
        return torch.arange(num_envs, device=device)
    ids_n = torch.as_tensor(env_ids_n, device=device)
    if ids_n.dim() != 1 or ids_n.dtype != torch.int64 or len(ids_n.unique()) < len(ids_n):
        raise UserError(f"environments are different int64 numbers, and not {ids_n.dtype} {list(ids_n.shape)}")
    if len(ids_n) and not 0 <= int(ids_n.min()) <= int(ids_n.max()) < num_envs:
        raise UserError(f"there are {num_envs} environments, numbered from 0, and not {ids_n.tolist()}")
    return ids_n


def checked_seeds(seeds_n: Any, n: int, device: torch.device | str) -> torch.Tensor:
    """int64 [n] on the device: the seeds of n environments."""
    import torch

    seeds_n = torch.as_tensor(seeds_n, device=device)
    if seeds_n.shape != (n,) or seeds_n.dtype != torch.int64:
        raise UserError(f"{n} environments need as many seeds, int64, and not {list(seeds_n.shape)} of {seeds_n.dtype}")
    return seeds_n


def check_variant(what: str, variant: str | None, known: Sequence[str]) -> None:
    """Refuse a variant that the simulator hasn't. None is the world as it is trained on."""
    if variant is not None and variant not in known:
        raise UserError(f"{what} has no variant {variant!r}: it has {', '.join(known) or 'none'}")


def checked_actions(
    actions_NA: Any, active_N: Any, num_envs: int, dims: int, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 [N, A] in [-1, 1], bool [N]) on the device: what is beyond is clipped, and rows that are not active are 0."""
    import torch

    actions_NA, active_N = (torch.as_tensor(given, device=device) for given in (actions_NA, active_N))
    wanted = [num_envs, dims]
    if list(actions_NA.shape) != wanted or not actions_NA.is_floating_point():
        raise UserError(f"actions must be float32 {wanted}, and not {actions_NA.dtype} {list(actions_NA.shape)}")
    if active_N.shape != (num_envs,) or active_N.dtype != torch.bool:
        raise UserError(f"active must be bool [{num_envs}], and not {active_N.dtype} {list(active_N.shape)}")
    wrong_N = actions_NA.isnan().any(1) & active_N
    if wrong_N.any():
        raise UserError(f"the action of environment {int(wrong_N.nonzero()[0])} has NaN: look at what the policy gave")
    return torch.where(active_N[:, None], actions_NA.detach().float().clamp(-1, 1), 0.0), active_N


def check_states(what: str, n: int, states: int) -> None:
    """Refuse another number of states than of environments that are to be put into them."""
    if states != n:
        raise UserError(f"{what}: {n} environments can't be put into {states} states")

"""How an episode in a simulator is laid out as targets of learning: a token, an action or a chunk each, as `ratio` says.

T calls (S of several episodes), K actions in a chunk, C choices in an action, L targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from mmrl.api.simulators.types import TrajectoryData

Ratio = Literal["token", "action", "chunk"]
"""What has a log-probability of its own in a loss; see the stage key `ratio`."""
Credited = Literal["token", "action", "chunk", "turn"]
"""What has an advantage of its own; see the stage key `credit`."""


def per_target(x_SKC: torch.Tensor, valid_SK: torch.Tensor, ratio: Ratio) -> torch.Tensor:
    """Figures of choices [S, K, C] -> [L]: summed over each target, of what was carried out, in the order of calls, actions and
    choices."""
    if ratio == "token":
        return x_SKC[valid_SK].flatten()
    x_SK = x_SKC.sum(-1)
    return x_SK[valid_SK] if ratio == "action" else x_SK.where(valid_SK, 0.0).sum(-1)


def values_per_target(values_SU: torch.Tensor, valid_SK: torch.Tensor, choices: int, ratio: Ratio) -> torch.Tensor:
    """A critic's values, of each action (U = K) or of the whole call (U = 1), -> [L]. choices: C."""
    if ratio == "chunk":
        return values_SU[:, 0]
    values_SK = values_SU.expand(-1, valid_SK.shape[1])
    return values_SK[..., None].expand(-1, -1, choices if ratio == "token" else 1)[valid_SK].flatten()


def num_targets(track: TrajectoryData, ratio: Ratio) -> int:
    """L of an episode."""
    if ratio == "chunk":
        return len(track.valid_TK)
    return int(track.valid_TK.sum()) * (track.logprobs_TKC.shape[-1] if ratio == "token" else 1)


def target_rewards(track: TrajectoryData, ratio: Ratio) -> torch.Tensor:
    """float32 [L]: each action's reward at its last target; of a chunk the sum."""
    if ratio != "token":
        return per_target(track.rewards_TK[..., None], track.valid_TK, ratio)
    paid_TKC = track.logprobs_TKC.new_zeros(track.logprobs_TKC.shape)
    paid_TKC[..., -1] = track.rewards_TK
    return per_target(paid_TKC, track.valid_TK, ratio)


def call_ends(track: TrajectoryData, ratio: Ratio) -> torch.Tensor:
    """int64 [T]: the last target of each call."""
    import torch

    if ratio == "chunk":
        return torch.arange(len(track.valid_TK))
    each = track.logprobs_TKC.shape[-1] if ratio == "token" else 1
    return (track.valid_TK.sum(1).cumsum(0) * each - 1).cpu()


def credit_units(track: TrajectoryData, ratio: Ratio, credit: Credited) -> torch.Tensor:
    """int64 [L]: the number of the unit of credit that each target belongs to: itself, its action, or its call."""
    import torch

    if credit == "token":
        return torch.arange(num_targets(track, ratio))
    calls, count = track.valid_TK.shape
    if ratio == "chunk":
        return torch.arange(calls)
    action_TK = (track.valid_TK.flatten().cumsum(0) - 1).view(calls, count)
    unit_TK = action_TK if credit == "action" else torch.arange(calls, device=action_TK.device)[:, None].expand(-1, count)
    targets_in_action = track.logprobs_TKC.shape[-1] if ratio == "token" else 1
    return unit_TK[track.valid_TK].repeat_interleave(targets_in_action).cpu()

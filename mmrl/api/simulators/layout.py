"""The targets of an episode in a simulator: each is a token, an action or a chunk, depending on `ratio`.

T calls of one episode (S of several), K actions in a chunk, C choices in an action (tokens, or 1), L targets.

Where tokens say a whole chunk (`TrajectoryData.tokens_T`, tokens_S of several episodes), C is the room for a call's tokens, and
the ratio is of a token or of the chunk.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from mmrl.api.media.content import State
    from mmrl.api.simulators.types import TrajectoryData

Ratio = Literal["token", "action", "chunk"]
"""The unit with its own log-probability ratio in the loss; see the stage key `ratio`."""
Credited = Literal["token", "action", "chunk", "turn"]
"""The unit with its own advantage; see the stage key `credit`."""


def places(valid_SK: torch.Tensor, choices: int, ratio: Ratio, tokens_S: torch.Tensor | None = None) -> torch.Tensor:
    """bool [S, U]: whether a place of a call has a target. A call has a place for each choice (U = K * C), for each action
    (U = K), or one; for each token, where tokens say a whole chunk (U = C). choices: C."""
    if ratio == "chunk":
        return valid_SK.new_ones(len(valid_SK), 1)
    if tokens_S is not None:
        return _spoken(choices, tokens_S)
    return valid_SK if ratio == "action" else valid_SK.repeat_interleave(choices, 1)


def _spoken(choices: int, tokens_S: torch.Tensor) -> torch.Tensor:
    """bool [S, C]: the tokens of each call."""
    import torch

    return torch.arange(choices, device=tokens_S.device) < tokens_S[:, None]


def per_target(
    x_SKC: torch.Tensor,
    valid_SK: torch.Tensor,
    ratio: Ratio,
    at_L: torch.Tensor | None = None,
    tokens_S: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum values of choices [S, K, C] over each target -> [L], in the order of calls, actions and choices. Actions that were not
    carried out are left out. at_L: int64, the flat indices of the targets among all `places`; without them, a device has to be
    waited for."""
    if ratio == "chunk":
        there = valid_SK if tokens_S is None else _spoken(x_SKC.shape[-1], tokens_S)
        x_S = (x_SKC.sum(-1) if tokens_S is None else x_SKC[:, 0]).where(there, 0.0).sum(-1)
        return x_S if at_L is None else x_S[at_L]
    x_SU = x_SKC.flatten(1) if ratio == "token" else x_SKC.sum(-1)
    return x_SU[places(valid_SK, x_SKC.shape[-1], ratio, tokens_S)] if at_L is None else x_SU.flatten()[at_L]


def values_per_target(
    values_SU: torch.Tensor,
    valid_SK: torch.Tensor,
    choices: int,
    ratio: Ratio,
    at_L: torch.Tensor | None = None,
    tokens_S: torch.Tensor | None = None,
) -> torch.Tensor:
    """A critic's values [S, U], of each action (U = K) or of the whole call (U = 1), -> [L]. choices: C. at_L: see
    `per_target`."""
    if ratio == "chunk":
        return values_SU[:, 0] if at_L is None else values_SU[at_L, 0]
    values_SK = values_SU.expand(-1, valid_SK.shape[1] if tokens_S is None else 1)
    each = values_SK.repeat_interleave(choices, 1) if ratio == "token" else values_SK
    return each[places(valid_SK, choices, ratio, tokens_S)] if at_L is None else each.flatten()[at_L]


def num_targets(data: TrajectoryData, ratio: Ratio) -> int:
    """L of an episode."""
    if ratio == "chunk":
        return len(data.valid_TK)
    if data.tokens_T is not None:
        return int(data.tokens_T.sum())
    return int(data.valid_TK.sum()) * (data.logprobs_TKC.shape[-1] if ratio == "token" else 1)


def target_rewards(data: TrajectoryData, ratio: Ratio) -> torch.Tensor:
    """float32 [L]: each action's reward at its last target; for chunks the sum of their actions' rewards, which is also
    that of the last of the tokens that say one."""
    if ratio != "token":
        return per_target(data.rewards_TK[..., None], data.valid_TK, ratio)
    if data.tokens_T is not None:
        rewards_L = data.rewards_TK.new_zeros(num_targets(data, ratio))
        rewards_L[data.tokens_T.cumsum(0) - 1] = data.rewards_TK.where(data.valid_TK, 0.0).sum(1)
        return rewards_L
    rewards_TKC = data.logprobs_TKC.new_zeros(data.logprobs_TKC.shape)
    rewards_TKC[..., -1] = data.rewards_TK
    return per_target(rewards_TKC, data.valid_TK, ratio)


def call_ends(data: TrajectoryData, ratio: Ratio) -> torch.Tensor:
    """int64 [T]: index of the last target of each call."""
    import torch

    if ratio == "chunk":
        return torch.arange(len(data.valid_TK))
    if data.tokens_T is not None:
        return (data.tokens_T.cumsum(0) - 1).cpu()
    targets_in_action = data.logprobs_TKC.shape[-1] if ratio == "token" else 1
    return (data.valid_TK.sum(1).cumsum(0) * targets_in_action - 1).cpu()


def states_of_calls(data: TrajectoryData) -> list[State]:
    """The state before each of the T calls: the instruction, and a digest of the numbers and pictures that were observed."""
    shown = [*(data.images[camera] for camera in sorted(data.images)), *([] if data.state is None else [data.state])]
    rows = [x[: len(data.valid_TK)].cpu().contiguous().numpy() for x in shown]
    return [(text, hashlib.sha256(b"".join(x[t].tobytes() for x in rows)).hexdigest()) for t, text in enumerate(data.told[:-1])]


def credit_units(data: TrajectoryData, ratio: Ratio, credit: Credited) -> torch.Tensor:
    """int64 [L]: index of the credit unit that each target belongs to: the target itself, its action, or its call."""
    import torch

    if credit == "token":
        return torch.arange(num_targets(data, ratio))
    calls, count = data.valid_TK.shape
    if ratio == "chunk":
        return torch.arange(calls)
    if data.tokens_T is not None:
        return torch.arange(calls).repeat_interleave(data.tokens_T.cpu())
    action_TK = (data.valid_TK.flatten().cumsum(0) - 1).view(calls, count)
    unit_TK = action_TK if credit == "action" else torch.arange(calls, device=action_TK.device)[:, None].expand(-1, count)
    targets_in_action = data.logprobs_TKC.shape[-1] if ratio == "token" else 1
    return unit_TK[data.valid_TK].repeat_interleave(targets_in_action).cpu()


def asked_until(data: TrajectoryData) -> list[int]:
    """Of each action of a demonstration, one per call: the number of the first action that is done for another instruction, or
    their count. Actions beyond its moments have its last instruction."""
    count = len(data.choices)
    found = [end for _, begin, end in data.stretches[:-1] for _ in range(begin, end)]
    return [*found, *[count] * (count - len(found))]

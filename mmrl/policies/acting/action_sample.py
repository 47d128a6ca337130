"""What a policy that acts returns for a call."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSample:
    """Actions that a policy chose for n environments."""

    actions_nKA: torch.Tensor
    """float32, in [-1, 1]."""
    choices: torch.Tensor
    """[n, ...]: the actions in the head's representation, such as bins."""
    logprobs_nKC: torch.Tensor
    values_nU: torch.Tensor | None = None
    """The critic's values, one for each action (U = K) or one for the chunk (U = 1)."""
    expert_actions_nA: torch.Tensor | None = None
    """Actions of the simulator's expert, if they were requested."""
    tokens_n: torch.Tensor | None = None
    """int64: see `TrajectoryData.tokens_T`."""
    corrected_n: torch.Tensor | None = None
    """bool: calls in which the expert acts in the policy's place."""

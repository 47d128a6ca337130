"""Options of ACT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mmrl.api.specs import Bounds
from mmrl.policies.acting.lerobot_policy import LeRobotOptions
from mmrl.policies.acting.options import Spread


@dataclass(frozen=True, kw_only=True)
class ACTOptions(LeRobotOptions):
    spread: Spread = 0.1
    """Standard deviation of an action's numbers around what the network predicts, in the policy's normalised numbers, with which
    it explores; where it is learned, the first one."""
    learn_spread: bool = True
    """Reinforcement learns the standard deviation, one for each number of an action. Otherwise it stays as `spread` says."""
    ensemble: Annotated[float, Bounds(low=-1, high=1)] | None = None
    """Temporal ensembling at temperature 0, with `chunk = 1`: a step's action is the mean of what all calls so far foresaw for
    it; the k-th of them weighs exp(-ensemble k). 0.01 in the paper. Unset: the checkpoint's, where `chunk` is 1."""
    kl_weight: Annotated[float, Bounds(low=0, high=1000)] | None = None
    """Weight of the latent's divergence in the loss of a demonstration. Unset: the checkpoint's."""
    dropout: Annotated[float, Bounds(low=0, high=0.9)] | None = None
    """Share of numbers that are dropped while it imitates. Unset: the checkpoint's."""

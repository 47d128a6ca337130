"""The state of N environments as tensors.

N environments, M places for other cars. Metres, radians, metres per second. Roads have their axes through 0: x to the east, y to
the north; the car comes from the south.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmrl.api.simulators.scenes import SceneRows

HISTORY = 30
"""Steps over which the distance from the lane's middle is remembered, as in VLM-RL's code."""


@dataclass(slots=True, kw_only=True)
class Scene(SceneRows):
    """Every field has a row for each environment."""

    seed: torch.Tensor
    """int64 [N]."""
    steps: torch.Tensor
    """int64 [N]: steps of the environment's episode."""
    car: torch.Tensor
    """float32 [N, 4]: x, y, direction, speed of the car that is driven."""
    steering: torch.Tensor
    """float32 [N]: the last action's."""
    others: torch.Tensor
    """float32 [N, M, 5]: x, y, direction, speed and usual speed of the other cars."""
    present: torch.Tensor
    """bool [N, M]: false for empty places."""
    route: torch.Tensor
    """int64 [N]: at the crossing 0 left, 1 straight on, 2 right; on the motorway the lane: 0 left, 1 middle, 2 right."""
    first: torch.Tensor
    """float32 [N]: where on its route the episode began."""
    aside: torch.Tensor
    """float32 [N, 30]: distances from the named lane's middle after the last steps, the newest first; 0 where there were
    fewer."""
    failed: torch.Tensor
    """bool [N]: it collided, or left the road or its route."""
    reward: torch.Tensor
    """float32 [N]: the simulator's own, of the last step."""
    template: torch.Tensor
    """int64 [N]: wording of the instruction."""
    night: torch.Tensor
    """bool [N]: it is dark."""

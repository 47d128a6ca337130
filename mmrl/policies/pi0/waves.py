"""The time of a flow as the experts of pi0 and pi0.5 read it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class Waves(nn.Module):
    """Sines and cosines of periods from `min_period` to `max_period`, float32. They are computed in float64, as in LeRobot and in
    openpi's PyTorch: a float32 phase of the shortest period is wrong by up to 1e-4."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        """[...] -> [..., H]."""
        config = self.config
        share = torch.linspace(0, 1, config.dit_config.hidden_size // 2, dtype=torch.float64, device=times.device)
        period = config.min_period * (config.max_period / config.min_period) ** share
        phase = times[..., None].double() * (2 * math.pi / period)
        return torch.cat([phase.sin(), phase.cos()], -1).float()

"""The classes of the networks of pi0 and pi0.5, and of their configurations."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import nn

from mmrl.compute.torchvision import prepare_torchvision


class Waves(nn.Module):
    """Times of a flow as sines and cosines of periods from `min_period` to `max_period`, float32. They are computed in float64, as
    in LeRobot and openpi's PyTorch: a float32 phase of the shortest period is wrong by up to 1e-4."""

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


@cache
def network_class(kind: str) -> Any:
    """For pi0 transformers' class, whose first and last layers stay float32 as openpi's do: an action's numbers go through
    them."""
    prepare_torchvision()
    if kind == "pi05":
        from mmrl.policies.pi0.network05 import PI05

        return PI05
    from transformers import PI0ForConditionalGeneration

    def init(self: Any, config: Any) -> None:
        PI0ForConditionalGeneration.__init__(self, config)
        self.embed_action_time.sinusoid_embeds = Waves(config)

    own = {"_keep_in_fp32_modules_strict": ["embed_action_time", "action_out_proj"], "__init__": init}
    return type("PI0ForConditionalGeneration", (PI0ForConditionalGeneration,), own)


def config_class(kind: str) -> Any:
    prepare_torchvision()
    if kind == "pi05":
        from mmrl.policies.pi0.network05 import PI05Config

        return PI05Config
    from transformers import PI0Config

    return PI0Config

"""The learned reward: an ensemble of small networks on a picture, trained on pairs by Bradley and Terry's model.

As in RL-VLM-F's code (yufeiwang63/RL-VLM-F @febe2f2: conv_net.py, and `RewardModel.train_reward` and `r_hat_batch` of
reward_model.py). M pictures of H x W pixels, P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from mmrl.api.errors import UserError
from mmrl.api.seeds import derive

CHANNELS, KERNELS, STRIDES = (16, 32, 64, 128), (5, 3, 3, 3), (3, 2, 2, 2)
LAST = 1e-3
"""Bound of the last layer's first weights."""


class RewardNet(nn.Module):
    """Four convolutions and a linear layer: a picture -> a number in (-1, 1)."""

    def __init__(self, height: int, width: int, generator: torch.Generator) -> None:
        """Raises UserError for pictures that are too small."""
        super().__init__()
        layers: list[nn.Module] = []
        inner, high, wide = 3, height, width
        for channels, kernel, stride in zip(CHANNELS, KERNELS, STRIDES, strict=True):
            layers += [nn.Conv2d(inner, channels, kernel, stride), nn.ReLU()]
            inner, high, wide = channels, (high - kernel) // stride + 1, (wide - kernel) // stride + 1
        if min(high, wide) < 1:
            raise UserError(f"a picture of {width} x {height} pixels is too small for the learned reward: give at least 49 x 49")
        self.eye, self.last = nn.Sequential(*layers), nn.Linear(inner * high * wide, 1)
        with torch.no_grad():
            for layer in layers:
                if isinstance(layer, nn.Conv2d):
                    fan = math.prod(layer.weight.shape[1:])
                    layer.weight.uniform_(-1 / math.sqrt(fan), 1 / math.sqrt(fan), generator=generator)
                    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # these layers have a bias
            for weights in (self.last.weight, self.last.bias):
                weights.uniform_(-LAST, LAST, generator=generator)

    def forward(self, pictures_M3HW: torch.Tensor) -> torch.Tensor:
        """float32 [M]. pictures_M3HW: float32, 0 to 1."""
        return self.last(self.eye(pictures_M3HW).flatten(1)).tanh()[:, 0]


class Ensemble(nn.Module):
    """Several of them with one optimiser; their mean is the reward."""

    def __init__(self, members: int, height: int, width: int, *, learning_rate: float, seed: int, device: torch.device) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(derive(seed, "learned reward"))
        self.members = nn.ModuleList(RewardNet(height, width, generator) for _ in range(members)).to(device)
        self.optimizer = torch.optim.Adam(self.members.parameters(), lr=learning_rate)
        self.device = device

    @torch.no_grad()
    def reward(self, pictures_MHWC: torch.Tensor, batch: int = 256) -> torch.Tensor:
        """float32 [M], in (-1, 1). pictures_MHWC: uint8."""
        parts = [torch.stack([m(self._floats(p)) for m in self.members]).mean(0).cpu() for p in pictures_MHWC.split(batch)]
        return torch.cat(parts) if parts else torch.zeros(0)

    def epoch(
        self, pairs: tuple[torch.Tensor, torch.Tensor], better_P: torch.Tensor, orders: Sequence[torch.Tensor], batch: int
    ) -> float:
        """One pass over the pairs; returns the accuracy before each step, the mean of the members. pairs: uint8 [P, H, W, 3]
        twice. better_P: int64, 0 where the first picture is preferred, 1 where the second is. orders: of the pairs, one for each
        member."""
        count, right = len(better_P), 0
        for start in range(0, count, batch):
            loss = torch.zeros((), device=self.device)
            for member, order in zip(self.members, orders, strict=True):
                chosen = order[start : start + batch]
                logits = torch.stack([member(self._floats(side[chosen])) for side in pairs], 1)
                labels = better_P[chosen].to(self.device)
                loss = loss + functional.cross_entropy(logits, labels)
                right += int((logits.argmax(1) == labels).sum())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return right / (count * len(self.members))

    def _floats(self, pictures_MHWC: torch.Tensor) -> torch.Tensor:
        return pictures_MHWC.to(self.device).permute(0, 3, 1, 2).float() / 255

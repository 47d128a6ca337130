"""Classifier-free guidance of policies that act: what is computed under an instruction is moved away from what is computed
without a part of it (Ho and Salimans, Classifier-Free Diffusion Guidance, arXiv 2207.12598; RECAP, arXiv 2511.14759)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmrl.api.simulators.types import Observation
from mmrl.policies.acting.flow import Velocity


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """How n calls are guided."""

    plain: Observation
    """The n observations without what guides."""
    weights_n: torch.Tensor
    """float32: 1 is no guidance, more moves further from what is chosen without it, 0 is what is chosen without it."""

    def on(self, device: torch.device) -> Guidance:
        return Guidance(plain=self.plain.on(device), weights_n=self.weights_n.to(device))

    def mixed(self, told: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        """[n, ...]: plain + weight * (told - plain), of velocities or logits."""
        return plain + self.weights_n.view(-1, *[1] * (told.dim() - 1)) * (told - plain)

    def velocity(self, told: Velocity, plain: Velocity) -> Velocity:
        """The guided velocity, of the one that is told and the one that isn't. Learned noise is that of the former."""

        def guided(x: torch.Tensor, times: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
            here, there = told(x, times), plain(x, times)
            if isinstance(here, tuple) and isinstance(there, tuple):
                return self.mixed(here[0], there[0]), here[1]
            assert isinstance(here, torch.Tensor) and isinstance(there, torch.Tensor)
            return self.mixed(here, there)

        return guided

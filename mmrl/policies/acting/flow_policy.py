"""Base class of policies that encode what is seen once, and move noise to actions along a velocity that reads the encoding."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch

from mmrl.api.simulators.types import Observation
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.flow import Chains, Velocity
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.randomness import CallRandomness


class FlowPolicy(ActingPolicy):
    """A subclass defines `look`, `velocity`, `noise_shape` and `_carried_out`. A look has `seen_nH`, what a critic reads, at the
    latest once a velocity was computed."""

    replays: ClassVar[bool] = True
    chains: Chains

    def look(self, seen: Observation) -> Any:
        """What a velocity reads: one pass over pictures and instruction."""
        raise NotImplementedError

    def velocity(
        self, look: Any, x_nMCD: torch.Tensor, times_nM: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """float32 [n, M, C, D], see `Velocity`."""
        raise NotImplementedError

    def _carried_out(self, x_nCD: torch.Tensor) -> torch.Tensor:
        """[n, K, A]: of the C actions that the network predicts those that are executed, and of their numbers the robot's."""
        raise NotImplementedError

    @property
    def guides(self) -> bool:
        return True

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        look = self.look(seen)
        if guidance is None:
            return self.replayed(self._moved, look, draw, temperature)
        plain = partial(self.velocity, self.look(guidance.plain))
        return self._moved(look, draw, temperature, guidance.velocity(partial(self.velocity, look), plain))

    def _moved(
        self, look: Any, draw: CallRandomness, temperature: float, guided: Velocity | None = None
    ) -> tuple[torch.Tensor, ...]:
        """What `choose` returns, along the velocity of this look, or a guided one."""
        assert self.noise_shape is not None
        velocity = guided or partial(self.velocity, look)
        end, choices, logprob = self.chains.sample(velocity, draw, self.noise_shape, temperature)
        assert look.seen_nH is not None
        return self._carried_out(end), choices, self._carried_out(logprob).sum(-1, keepdim=True), look.seen_nH

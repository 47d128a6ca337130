"""Base class of policies that encode what is seen once, and move noise to actions along a velocity that reads the encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.flow import PLACES, Chains, Velocity
from mmrl.policies.acting.flow_noise import noise_weights
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.batches import ActionMicroBatch


class FlowPolicy(ActingPolicy):
    """A subclass defines `look`, `velocity` and `noise_shape`. A look has `seen_nH`, what a critic reads, at the latest once a
    velocity was computed."""

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
        return x_nCD[:, : self.chunk, : self.dims]

    def _learned(self, x_nCD: torch.Tensor) -> torch.Tensor:
        """[n, `ahead`, ...]: what is learned from a demonstration."""
        return x_nCD

    def _moments(self, tracks: Sequence[TrajectoryData]) -> int:
        """Times of a flow at which a call of these episodes passes the network, at most."""
        moments = 1 if self.chains.noisy == "one" else self.chains.steps
        demonstrated = any(track.choices.shape[1] == 1 for track in tracks)
        return max(moments, PLACES) if demonstrated else moments

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

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        look = self.look(calls.observation)
        found, entropy = self.chains.score(partial(self.velocity, look), calls.choices, temperature)
        assert look.seen_nH is not None
        if calls.choices.shape[1] > 1:
            logprobs = self._carried_out(found).sum(-1, keepdim=True)
        else:  # a chunk's mean is over all actions that are learned, so that those that are not executed are learned as well
            each, share = self._learned(found).mean(-1, keepdim=True), self.chunk / self.ahead
            rest = each[:, self.chunk :].mean(1, keepdim=True) if share < 1 else torch.zeros_like(each[:, :1])
            logprobs = share * each[:, : self.chunk] + (1 - share) * rest
        return logprobs, self._carried_out(entropy).sum(-1, keepdim=True), look.seen_nH

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of learned noise: all others are in the checkpoint's own layout."""
        yield from noise_weights(self.model)

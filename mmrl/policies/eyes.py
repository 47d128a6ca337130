"""What critics of actions see of an observation: features that nothing trains, so that a memory can keep them, or those of a copy
of the policy that a value function trains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.parts import part_of
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.observed import state_of
from mmrl.policies.acting.randomness import CallRandomness

AT_ONCE = 256
"""Observations of an episode whose features are computed in one pass."""


class Sees(Protocol):
    """What gives features. A `Squashed` policy is its own."""

    width: int
    """Numbers of an observation's features."""
    noise_of: str
    """Whose noise an action is, see `Layout.noise`; empty where it is the simulator's."""

    @property
    def numbers(self) -> int:
        """Numbers of an action, or of a chunk of them."""
        ...

    def remembered(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor: ...
    def remembered_of(self, track: TrajectoryData) -> torch.Tensor: ...
    def transitions(self, track: TrajectoryData) -> tuple[torch.Tensor, torch.Tensor]: ...


class Eyes:
    """A frozen copy of a policy, as it was when this object was made: its hidden states, and numbers of the simulator's state."""

    noise_of = ""

    def __init__(self, policy: ActingPolicy, state: int = 0) -> None:
        """state: numbers of the state that are read; 0 for none."""
        self.copy, self.size = policy.clone(frozen=True), state
        self.width = policy.width + state
        self.numbers = policy.chunk * policy.dims

    def features(self, seen: Observation) -> torch.Tensor:
        """float32 [n, F]: the features of observations."""
        seen = seen.on(self.copy.device)
        found = [self.copy.states_of(seen).float()]
        if self.size:
            found.append(state_of(seen, self.size).float())
        return torch.cat(found, 1)

    @torch.no_grad()
    def remembered(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        """`features`, to keep. draw: not used; a policy that remembers episodes has no eyes."""
        return self.features(seen)

    def remembered_of(self, track: TrajectoryData) -> torch.Tensor:
        """float32 [T + 1, F]: the features of an episode's observations, that of the last state included."""
        return features_of(self, track)

    def transitions(self, track: TrajectoryData) -> tuple[torch.Tensor, torch.Tensor]:
        """(features [T + 1, F], chunks of actions [T, K * A] in [-1, 1]) of an episode that was played."""
        assert track.actions_TKA is not None
        return self.remembered_of(track), track.actions_TKA.flatten(1).clamp(-1, 1)

    def state(self) -> dict[str, torch.Tensor]:
        """The copy's weights."""
        return dict(self.copy.parameters())

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` gave."""
        with torch.no_grad():
            for name, parameter in self.state().items():
                parameter.copy_(tensors[name])


class TrainedEyes(Eyes):
    """A copy of a policy of which some parts are trained by what reads it."""

    def __init__(self, policy: ActingPolicy, parts: Collection[str], state: int = 0) -> None:
        """parts: of `mmrl.config.parts.part_of`. Raises UserError if the policy has none of them."""
        super().__init__(policy, state)
        self.trained = {name: p for name, p in self.copy.parameters() if part_of(name) in parts}
        for parameter in self.trained.values():
            parameter.requires_grad_()
        if not self.trained:
            raise UserError(f"the policy has no weights of the {' or '.join(sorted(parts))}, so that no copy of them can learn")

    def state(self) -> dict[str, torch.Tensor]:
        """The weights that are trained."""
        return dict(self.trained)


def features_of(sees: Sees, track: TrajectoryData) -> torch.Tensor:
    """float32 [T + 1, F]: see `Eyes.remembered_of`."""
    whole = Observation(images=track.images, state=track.state, instructions=track.told)
    return torch.cat([sees.remembered(whole.rows(some)) for some in torch.arange(len(whole)).split(AT_ONCE)])

"""The numbers of a policy that acts, and the simulator's: normalised by statistics of the data, in physical units, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.specs import ActionSpec
from mmrl.policies.acting.observed import state_of
from mmrl.policies.acting.options import StatisticsOptions
from mmrl.policies.acting.units import Normalizer, Statistics, Units, check_range, load_statistics, simulator_units
from mmrl.policies.policy import Policy

Begun = TrajectoryData | Observation


class NormalisedPolicy(Policy):
    """A policy that acts, and whose numbers may be normalised."""

    device: torch.device
    dims: int
    """Dimensions of an action."""
    statistics: Statistics | None = None
    """Statistics of the training data, if the policy's numbers are normalised; see `mmrl.policies.acting.units`."""
    gripper: str = ""
    """The data's gripper convention, a key of `units.GRIPPERS`."""
    units: Units | None = None
    """Units of the simulator, for a policy with statistics; `fits` sets them."""

    @property
    def action_statistics(self) -> Normalizer | None:
        """Statistics of the policy's actions; None if its numbers are the simulator's."""
        return None if self.statistics is None else self.statistics.action

    def use_statistics(self, given: str | Mapping[str, Any], options: StatisticsOptions) -> None:
        """Read the statistics by which the policy's numbers are normalised, if any are given. given: the option, or those of a
        checkpoint; see `units.load_statistics`. Raises UserError for statistics that don't fit the policy."""
        key, kind, gripper = options.statistics_key, options.statistics_kind, options.gripper
        if not given:
            for option, value in (("statistics_key", key), ("statistics_kind", kind), ("gripper", gripper)):
                if value:
                    raise UserError(
                        f"policy.options.{option} = {value!r} says what statistics mean, and policy.options.statistics names none"
                    )
            return
        statistics = load_statistics(given, key, kind)
        if len(statistics.action) != self.dims:
            raise UserError(
                f"policy.options.statistics are of actions of {len(statistics.action)} numbers, and policy.options.dims = "
                f"{self.dims}: make them equal"
            )
        self.statistics, self.gripper = statistics, gripper

    def check_state_statistics(self, size: int, needed: bool = False) -> None:
        """Raise UserError if statistics of the state are of another width than `size`, the numbers that the policy reads, or
        with `needed` if the policy has statistics and none of a state that it reads."""
        found = None if self.statistics is None else self.statistics.state
        if size and found is not None and len(found) != size:
            raise UserError(
                f"policy.options.statistics are of states of {len(found)} numbers, and policy.options.state = {size}: make them "
                "equal"
            )
        if needed and size and self.statistics is not None and found is None:
            raise UserError(
                f"policy.options.statistics has no statistics of the state, and policy.options.state = {size} is read: name a "
                "file that has them, or leave state out"
            )

    def normalised_state(self, seen: Observation, size: int) -> torch.Tensor:
        """float32 [n, size]: the robot's state, normalised if there are statistics of it."""
        state = state_of(seen, size).to(self.device).float()
        if self.statistics is None or self.statistics.state is None:
            return state
        return self.statistics.state.normalize(state)

    def simulated(self, actions: torch.Tensor, seen: Observation | None = None) -> torch.Tensor:
        """The policy's own numbers [..., A] -> the simulator's, in [-1, 1]. seen: the n observations in which chunks [n, K, A]
        were chosen, for a policy whose numbers are relative to the robot's state."""
        if self.statistics is None:
            return actions.clamp(-1, 1)
        return self._units().simulated(self.statistics.action.unnormalize(actions))

    def in_own_terms(self, actions: torch.Tensor, physical: bool = False, track: Begun | None = None) -> torch.Tensor:
        """The inverse of `simulated`. physical: convert from metres, radians and the data set's gripper convention instead.
        track: the episode at whose T steps the chunks [T, C, A] begin, or their T observations."""
        if self.statistics is None:
            if physical:
                raise UserError(
                    "the actions have physical units, and the policy has no statistics: set policy.options.statistics"
                )
            return actions
        return self.statistics.action.normalize(actions if physical else self._units().physical(actions))

    def _units(self) -> Units:
        if self.units is None:
            raise UserError("the policy has statistics but doesn't know the simulator's units: call fits() first")
        return self.units

    def take_units(self, task: str, simulator: str, action: ActionSpec) -> None:
        """Learn the units of a simulator's actions, if the policy has statistics. Raises UserError for units that don't fit."""
        if self.action_statistics is not None:
            units = simulator_units(f"task {task!r}: simulator {simulator!r}", action, self.gripper)
            if units.gripper is not None:
                check_range(self.action_statistics, units.gripper, self.gripper)
            if self.units not in (None, units):
                raise UserError(
                    f"task {task!r}: an action of simulator {simulator!r} has units {list(units.sizes)} around "
                    f"{list(units.offsets) or 0}, and that of another task has others: a policy with statistics takes tasks of "
                    "equal units"
                )
            self.units = units

"""Episodes that a copy of the policy plays: while the learner learns (`compute.staleness`), or on a device of its own
(`simulate.policy_device`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt
from mmrl.config.sections import SimulateConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.critic import Critic
from mmrl.policies.shard import copy_weights
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.weights import parameter_versions
from mmrl.rollout.simulators.demonstrations import to_device
from mmrl.rollout.simulators.lane import Lane
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.rollout.simulators.replaced import Elsewhere


class TwinCollector(SimulatorCollector):
    """Plays episodes with the learner's weights as they were at the last `wake_up`; each rank has all of them."""

    def __init__(
        self,
        learner: ActingPolicy,
        twin: ActingPolicy,
        tasks: Mapping[str, Task],
        config: SimulateConfig,
        device: str = "cpu",
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """learner: the policy that learns, whose samples then come from other weights or another device than its own. twin: the
        policy that acts."""
        self._learners: Critic | None = None
        self._copied: Critic | None = None
        super().__init__(twin, tasks, config, device, elsewhere)
        self.learner = learner
        learner.exact_sampler = False
        copy_weights(learner.root, learner.model, twin.model)
        self._known = parameter_versions(learner.model)

    @property  # type: ignore[override]
    def critic(self) -> Critic | None:
        """A copy of the learner's critic as it was at the last `wake_up`."""
        return self._copied

    @critic.setter
    def critic(self, given: Critic | None) -> None:
        self._learners, self._copied = given, None
        if given is not None:
            self._copied = Critic(self.policy, given.config, 0, given.outputs)
            self._copied.head.requires_grad_(False)
            self._copy_critic()

    def _copy_critic(self) -> None:
        if self._learners is not None and self._copied is not None:
            copy_weights(None, self._learners.head, self._copied.head)

    @property
    def learns_on(self) -> torch.device:
        return self.learner.device

    def lanes(self, label: str) -> list[Lane]:
        found = super().lanes(label)
        self.learner.units = self.policy.units
        return found

    def collect(
        self,
        prompts: Sequence[Prompt],
        inputs: Sequence[Any],
        group_size: int,
        sampling: SamplingParams,
        version: int = 0,
        numbers: Sequence[int] = (),
    ) -> list[Trajectory]:
        """What lies on the twin's device moves to the learner's; what simulators keep elsewhere stays there."""
        played = super().collect(prompts, inputs, group_size, sampling, version, numbers)
        here, there = self.policy.device, self.learns_on
        if here == there:
            return played
        return [r if r.data is None else replace(r, data=to_device(r.data, there, of=here)) for r in played]

    def wake_up(self) -> None:
        """Copy the learner's present weights and critic."""
        self._copy_critic()
        now: Any = parameter_versions(self.learner.model)
        if now != self._known:
            copy_weights(self.learner.root, self.learner.model, self.policy.model)
            self._known = now

    def sleep(self) -> None:
        """Nothing to do: its weights are its own."""

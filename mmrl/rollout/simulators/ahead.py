"""Episodes of later steps, played while the learner learns (`compute.staleness`), with a copy of the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mmrl.api.interfaces import Task
from mmrl.config.sections import SimulateConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.critic import Critic
from mmrl.policies.shard import copy_weights
from mmrl.rollout.generate.weights import parameter_versions
from mmrl.rollout.simulators.lane import Lane
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.rollout.simulators.replaced import Elsewhere


class AheadCollector(SimulatorCollector):
    """Plays episodes with the learner's weights as they were at the last `wake_up`; each rank has all of them."""

    def __init__(
        self,
        policy: ActingPolicy,
        tasks: Mapping[str, Task],
        config: SimulateConfig,
        device: str = "cpu",
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """policy: the learner's, whose samples then come from other weights than its own."""
        self._learners: Critic | None = None
        self._copied: Critic | None = None
        super().__init__(policy.clone(frozen=True, spread=False), tasks, config, device, elsewhere)
        self.learner = policy
        policy.exact_sampler = False
        self._known = parameter_versions(policy.model)

    @property  # type: ignore[override]
    def critic(self) -> Critic | None:
        """A copy of the learner's critic as it was at the last `wake_up`."""
        return self._copied

    @critic.setter
    def critic(self, given: Critic | None) -> None:
        self._learners = given
        self._copy_critic()

    def _copy_critic(self) -> None:
        self._copied = None
        if self._learners is not None:
            self._copied = copy.copy(self._learners)
            self._copied.head = copy.deepcopy(self._learners.head).requires_grad_(False)

    def lanes(self, label: str) -> list[Lane]:
        found = super().lanes(label)
        self.learner.units = self.policy.units
        return found

    def wake_up(self) -> None:
        """Copy the learner's present weights and critic."""
        self._copy_critic()
        now: Any = parameter_versions(self.learner.model)
        if now != self._known:
            copy_weights(self.learner.root, self.learner.model, self.policy.model)
            self._known = now

    def sleep(self) -> None:
        """Nothing to do: its weights are its own."""

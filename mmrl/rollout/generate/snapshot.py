"""The embedded sampler with a copy of the weights, so that it can sample while the learner's change."""

from __future__ import annotations

from mmrl.policies.shard import copy_weights
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.weights import parameter_versions


class SnapshotGenerator(LocalGenerator):
    """Samples with a copy of the learner's weights as they were at the last `wake_up`."""

    def __init__(self, policy: VLM, batch_size: int = 256) -> None:
        """policy: the learner's."""
        super().__init__(policy.clone(frozen=True, spread=False), batch_size)
        self.learner = policy
        self._known = parameter_versions(policy.model)

    def wake_up(self) -> None:
        """Copy the learner's present weights."""
        now = parameter_versions(self.learner.model)
        if now == self._known:
            return
        copy_weights(self.learner.root, self.learner.model, self.policy.model)
        self._known = now

"""The embedded sampler with a copy of the weights, so that it can sample while the learner's change."""

from __future__ import annotations

from mmrl.policies.shard import copy_weights
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.exchange import WeightExchange
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.weights import parameter_versions


class SnapshotGenerator(LocalGenerator):
    """Samples with a copy of the learner's weights as they were at the last `wake_up` or `renew`."""

    def __init__(self, policy: VLM, batch_size: int = 256, *, interrupt: bool = False) -> None:
        """policy: the learner's. interrupt: `renew` may be called while completions are sampled."""
        super().__init__(policy.clone(frozen=True, spread=False), batch_size)
        self.learner, self.exchange = policy, WeightExchange() if interrupt else None
        self._known = parameter_versions(policy.model)

    def wake_up(self) -> None:
        """Copy the learner's present weights."""
        if self.exchange:
            self.exchange.version = None
        now = parameter_versions(self.learner.model)
        if now == self._known:
            return
        copy_weights(self.learner.root, self.learner.model, self.policy.model)
        self._known = now

    def renew(self, version: int) -> None:
        """Copy the learner's present weights, of this version. Completions that are being sampled go on with them."""
        assert self.exchange is not None, "made without `interrupt`"
        with self.exchange.changing(version):
            self.wake_up()

"""The embedded sampler with weights of its own, so that it can sample while the learner's change."""

from __future__ import annotations

import torch

from mmrl.policies.shard import state_of, whole
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.weights import versions


class TwinGenerator(LocalGenerator):
    """Samples with a copy of the learner's weights as they were at the last `wake`."""

    def __init__(self, policy: VLM, batch_size: int = 256) -> None:
        """policy: the learner's."""
        super().__init__(policy.twin(frozen=True, spread=False), batch_size)
        self.learner = policy
        self._known = versions(policy.model)

    @torch.no_grad()
    def wake(self) -> None:
        """Take over the learner's weights of this moment."""
        now = versions(self.learner.model)
        if now == self._known:
            return
        with whole(self.learner.root):
            for own, theirs in zip(state_of(self.policy.model).values(), state_of(self.learner.model).values(), strict=True):
                own.copy_(theirs)
        self._known = now

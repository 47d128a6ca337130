"""A worker without JAX: environments count from their seed, each step by its action, and pay what they have counted."""

import os

import numpy


class Batch:
    def __init__(self, num_envs, **options):
        self.count = numpy.zeros(num_envs, numpy.float32)
        self.reward = self.count.copy()
        self.facts = {"dims": 2 * num_envs, "action": 1, "max_steps": 9, "devices": options["platform"]}

    def reset(self, seeds, variant):
        for env, seed in (seeds or {}).items():
            self.count[env] = seed
        return self._rows()

    def step(self, numbers):
        actions, active = numbers.reshape(2, -1)
        if (actions < 0).any():
            os._exit(3)
        self.count += actions * active
        self.reward = self.count * active
        return self._rows()

    def snapshot(self, envs):
        return {"count": self.count[envs]}

    def restore(self, given):
        envs, state = given
        self.count[envs] = state["count"]
        return self._rows()

    def _rows(self):
        high = self.count > 5
        flags = {"reward": self.reward.copy(), "terminated": high, "lost": self.count > 50, "success": high}
        return {**flags, "state": self.count[:, None].copy()}

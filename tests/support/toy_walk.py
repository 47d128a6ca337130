"""An environment for `mmrl.api.simulators.processes.simulator` that keeps the contract: a point that is pushed about on a
square, and drawn."""

import contextlib
import os
import signal

import numpy


class Environment:
    facts = {"dims": 2}

    def reset(self, seed, variant):
        self.state = numpy.random.RandomState(seed % 2**32).uniform(-1, 1, 4) * (0.1 if variant == "near" else 1.0)
        return self._rows(0.0)

    def step(self, action):
        if (action == 1).all() and os.environ.get("FRAGILE"):
            os.kill(os.getpid(), signal.SIGKILL)
        before = self._distance()
        self.state[2:] = 0.9 * self.state[2:] + 0.1 * action
        self.state[:2] += self.state[2:]
        return self._rows(before - self._distance())

    def expert(self):
        """Straight to the middle. The first process that is asked while the file BOMB is there takes it away and dies."""
        with contextlib.suppress(KeyError, FileNotFoundError):
            os.unlink(os.environ["BOMB"])
            os.kill(os.getpid(), signal.SIGKILL)
        return (-(self.state[:2] + self.state[2:])).clip(-1, 1).tolist()

    def snapshot(self):
        return self.state.tolist()

    def restore(self, state):
        self.state = numpy.array(state)
        return self._rows(0.0)

    def render(self):
        return 16, 16, self._picture(16).tobytes()

    def _distance(self):
        return float(numpy.abs(self.state[:2]).max())

    def _picture(self, size):
        picture = numpy.zeros((size, size, 3), numpy.uint8)
        row, column = ((self.state[:2] + 2) / 4 * size).astype(int).clip(0, size - 1)
        picture[row, column] = 255
        return picture

    def _rows(self, reward):
        return {
            "camera/above": self._picture(8),
            "state": self.state.astype(numpy.float32),
            "reward": numpy.array(reward, numpy.float32),
            "terminated": numpy.array(self._distance() > 5),
            "truncated": numpy.array(False),
            "success": numpy.array(self._distance() < 0.1),
            "part/near": numpy.array(self._distance() < 0.5, numpy.float32),
        }

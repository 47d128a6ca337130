"""An environment for `mmrl.api.simulators.processes` that can be told to fail: a point on a line, in a process of its own."""

import glob
import os
import signal
import sys
import time

import numpy


class Refused(Exception):
    plain = True


class Environment:
    """The first number of an action moves the point; the second, where it is not 0, makes it fail in the way of that number."""

    def __init__(self, dims=2, start="well", mark=None, odd=False):
        if start == "refused":
            raise Refused("there is no such environment")
        if start == "raises":
            raise RuntimeError("no luck")
        if start == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if start == "hangs":
            time.sleep(1000)
        if start == "stumbles" and not os.path.exists(mark):  # hangs the first time
            with open(mark, "w"):
                pass
            time.sleep(1000)
        if start == "chatters":
            for _ in range(3000):
                print("x" * 100)
        if start == "once":  # well for as long as there is no such file, which it leaves
            if os.path.exists(mark):
                raise RuntimeError("only once")
            with open(mark, "w"):
                pass
        self.facts = {
            "dims": dims,
            "threads": os.environ["OMP_NUM_THREADS"],
            "told": os.environ.get("TOLD"),
            "python": sys.executable,
        }
        self.mark, self.odd = mark, odd
        self.at, self.steps, self.seed = 0.0, 0, 0

    def reset(self, seed, variant):
        if variant == "dies":
            os._exit(7)
        self.at, self.steps, self.seed = float(seed), 0, seed
        return self._rows()

    def step(self, action):
        how = round(float(action[1]))
        if how == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == 2:
            time.sleep(1000)
        elif how == 3:
            raise ValueError("the point is lost")
        elif how == 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == 5:
            print("goodbye", file=sys.stderr, flush=True)
            sys.stderr.close()
            os._exit(3)
        elif how == 6:
            self.odd = True
        elif how == 7:
            raise Refused("that is no way to go")
        elif how >= 10:  # goes on when there are so many more in this step
            with open(f"{self.mark}-{os.getpid()}", "w"):
                pass
            while len(glob.glob(f"{self.mark}-*")) < how - 10:
                time.sleep(0.01)
        self.at += float(action[0])
        self.steps += 1
        return self._rows()

    def snapshot(self):
        return (self.at, self.steps, b"x" * 300000)

    def restore(self, state):
        self.at, self.steps, _ = state
        return self._rows()

    def child(self):
        """Starts a process, and says which."""
        import subprocess

        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid

    def _rows(self):
        size = 3 if self.odd else 2
        return {
            "picture": numpy.full((size, size, 3), int(self.at) % 256, numpy.uint8),
            "state": numpy.array([self.at, self.steps], numpy.float32),
            "over": numpy.array(self.steps >= 3),
        }

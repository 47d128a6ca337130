"""Simulators that take one environment a process: N processes in lock-step, their rows in shared memory.

A plugin names a factory, `module:function`; called with its options, in each process, it makes a world:

    class World:
        facts = {"dims": 7}                 # A, and whatever else the plugin wants to know; plain data
        def reset(self, seed, variant): ...  # -> {name: numpy array}, a row of each array: pictures, state, reward, flags
        def step(self, action): ...          # float32 [A] -> the same names, shapes and dtypes
        def snapshot(self): ...              # -> plain data
        def restore(self, state): ...        # -> rows

Other methods may be asked for with `EnvironmentProcesses.call`. The module is loaded by its file, without the packages that it
lies in: it may import what the interpreter of the workers has, and nothing of mmrl, which that one may lack.

A process that dies, raises or takes too long is killed, and its environment is lost until its next reset starts another one. An
exception with an attribute `plain` is no failure: what is asked is refused, by a UserError with its message.
`mmrl.api.simulators.processes.simulator` makes a `mmrl.Simulator` of such worlds.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import selectors
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError
from mmrl.api.processes import shared_memory
from mmrl.api.simulators.processes.process import Process

if TYPE_CHECKING:
    import numpy

TRIES = 3
"""Processes that are started for one reset before it is given up."""
ALIGNMENT = 64
"""Bytes to a multiple of which the arrays begin."""


class EnvironmentProcesses:
    """N worlds, a process each. Not for several threads at once.

    Example::

        workers = Workers("mmrl_gym.world:World", {"env_id": "Pendulum-v1"}, num_envs=4, what="gym/env")
        workers.reset({0: 11, 1: 12, 2: 13, 3: 14})
        lost = workers.step(actions_NA, [0, 1, 2, 3])
        pictures = workers.rows["camera"].copy()
    """

    def __init__(
        self,
        factory: str,
        options: Mapping[str, Any],
        num_envs: int,
        *,
        what: str,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        start_s: float = 300.0,
        timeout_s: float = 60.0,
        tries: int = TRIES,
    ) -> None:
        """what: begins every message, such as the simulator's id. python: the interpreter of the workers, by default this one.
        environment: variables for them. start_s: seconds that a process may take until its world has been reset once.
        timeout_s: seconds that it may take for anything else. tries: processes that are started for an environment at first.

        Raises UserError where no world can be made.
        """
        self.what, self.num_envs, self.timeout_s = what, num_envs, timeout_s
        self.lost = 0
        """Environments that were lost so far."""
        self.why: list[str] = []
        """The last reasons for it, each with the number of its environment; the newest last, at most 100."""
        self._options, self._environment, self._start_s = dict(options), dict(environment or {}), start_s
        module, _, _ = factory.partition(":")
        found = importlib.util.find_spec(module)
        if found is None or not found.origin:
            raise UserError(f"{what}: there is no module {module!r} to make worlds with")
        self._world = (factory, found.origin)
        self._python = _interpreter(what, python)
        self._starter = ThreadPoolExecutor(1, "worker-starter")
        """Starts all processes: they die with the thread that did, and one of the caller's may end before."""
        self._memory = shared_memory()
        self._processes: list[Process | None] = [None] * num_envs
        self._said = ""
        """What the last world that failed said of it, and not its process."""
        self._closed = False
        try:
            self._begin(tries)
        except BaseException:
            self.close()
            raise

    # -- what is asked ----------------------------------------------------------------------------------------------------

    def reset(self, seeds: Mapping[int, int], variant: str | None = None) -> None:
        """Starts environments, each from its seed. Those that were lost, or are lost by this, get other processes.

        seeds: number of the environment -> its seed. Raises UserError where an environment can't be started.
        """
        self._surely({env: ("reset", (seed, variant)) for env, seed in seeds.items()})

    def restore(self, states: Mapping[int, Any]) -> None:
        """Puts environments into states that `call("snapshot")` gave; see `reset`."""
        self._surely({env: ("restore", (state,)) for env, state in states.items()})

    def step(self, actions_NA: numpy.ndarray, envs: Sequence[int]) -> dict[int, str]:
        """One step of these environments. actions_NA: float32, rows of the others are not looked at.

        Returns the environments that are lost, with the reason; what `rows` holds of them means nothing.
        """
        self._open()
        lost = {env: "it was lost before, and not reset since" for env in envs if self._processes[env] is None}
        going = [env for env in envs if env not in lost]
        self._actions[going] = actions_NA[going]
        _, newly = self._ask({env: ("step", ()) for env in going}, self.timeout_s)
        return lost | newly

    def call(self, envs: Iterable[int], method: str, *arguments: Any) -> list[Any]:
        """What a method of their worlds gives, in the order of `envs`. Raises UserError where one is, or gets, lost."""
        self._open()
        envs = list(envs)
        for env in envs:
            if self._processes[env] is None:
                raise UserError(f"{self.what}: environment {env} was lost: reset it first")
        given, lost = self._ask(dict.fromkeys(envs, (method, arguments)), self.timeout_s)
        for env, why in lost.items():
            raise UserError(f"{self.what}: {method} of environment {env} failed: {why}")
        return [given[env] for env in envs]

    def pid(self, env: int) -> int | None:
        """The process of an environment; None while it is lost."""
        process = self._processes[env]
        return process.pid if process else None

    def close(self) -> None:
        """Ends all processes; may be called twice."""
        if self._closed:
            return
        self._closed = True
        for process in self._processes:
            if process:
                process.close()
        self._processes = [None] * self.num_envs
        self._starter.shutdown()
        os.close(self._memory)  # arrays that somebody still holds keep their pages

    # -- processes --------------------------------------------------------------------------------------------------------

    def _begin(self, tries: int) -> None:
        """Starts all processes, at once, and lays out the memory by what the first one shows."""
        every = list(range(self.num_envs))
        ready: dict[int, Any] = {}
        for _ in range(tries):  # drivers that render hang now and then; a world that says what is wrong is believed at once
            missing = [env for env in every if env not in ready]
            for env in missing:
                self._processes[env] = self._started()
            found, lost = self._wait(missing, self._start_s, method="start")
            ready |= found
            if not lost or self._said:
                break
        if lost:
            why = self._said or next(iter(lost.values()))
            raise UserError(f"{self.what} can't be made: {why}")
        layout, self.facts = ready[0]
        for env, (other, facts) in ready.items():
            if (other, facts) != (layout, self.facts):
                raise UserError(f"{self.what}: environment {env} shows other things than environment 0: {other} and {layout}")
        self._lay_out(layout)
        for env in every:
            self._admit(env)

    def _lay_out(self, layout: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        import numpy

        self._layout = layout
        shapes = {**layout, "action": ("float32", (int(self.facts["dims"]),))}
        self._offsets: dict[str, int] = {}
        self._total = 0
        for name, (dtype, shape) in shapes.items():
            self._offsets[name] = self._total
            size = self.num_envs * int(numpy.prod(shape, dtype=numpy.int64)) * numpy.dtype(dtype).itemsize
            self._total += -(-size // ALIGNMENT) * ALIGNMENT
        os.ftruncate(self._memory, self._total)
        memory = mmap.mmap(self._memory, self._total)

        def array(name: str, dtype: str, shape: tuple[int, ...]) -> numpy.ndarray:
            count = self.num_envs * int(numpy.prod(shape, dtype=numpy.int64))
            return numpy.frombuffer(memory, dtype, count, self._offsets[name]).reshape(self.num_envs, *shape)

        self._actions = array("action", *shapes["action"])
        self.rows: dict[str, numpy.ndarray] = {name: array(name, *layout[name]) for name in layout}
        """Name -> what the environments last showed, [N, ...]: shared memory that the next step writes over, so copy it."""

    def _started(self) -> Process:
        path = sys.path if self._python == sys.executable else None
        given = (self._python, path, self._world, self._memory, self._options, self._environment)
        return self._starter.submit(Process, *given).result()

    def _admit(self, env: int) -> None:
        """Tells a process that is ready which rows are its own."""
        process = self._processes[env]
        assert process
        process.send((self._offsets, self._total, env, int(self.facts["dims"])), self.timeout_s)

    def _restart(self, envs: Sequence[int]) -> dict[int, str]:
        """Other processes for these environments. Returns those that failed, with the reason."""
        for env in envs:
            self._processes[env] = self._started()
        ready, lost = self._wait(envs, self._start_s, method="start")
        for env, (layout, _) in ready.items():
            if layout != self._layout:
                lost[env] = self._lose(env, f"it shows other things than before: {layout} and {self._layout}")
            else:
                self._admit(env)
        return lost

    def _surely(self, asked: Mapping[int, tuple[str, tuple[Any, ...]]]) -> None:
        """Asks until all have done it, with other processes for those that fail."""
        self._open()
        left = dict(asked)
        for _ in range(TRIES):
            failed = self._restart([env for env in left if self._processes[env] is None])
            _, lost = self._ask({env: what for env, what in left.items() if env not in failed}, self.timeout_s)
            failed |= lost
            left = {env: asked[env] for env in failed}
            if not left:
                return
        env, why = next(iter(failed.items()))
        raise UserError(f"{self.what}: {asked[env][0]} of environment {env} failed with {TRIES} processes: {why}")

    def _ask(self, asked: Mapping[int, tuple[str, tuple[Any, ...]]], seconds: float) -> tuple[dict[int, Any], dict[int, str]]:
        """Sends each environment its message and waits for the answers: those, and the environments that were lost."""
        lost: dict[int, str] = {}
        for env, message in asked.items():
            process = self._processes[env]
            assert process
            try:
                process.send(message, seconds)
            except OSError:  # it is dead, or stands still
                lost[env] = self._lose(env, process.cause_of_death())
        methods = {method for method, _ in asked.values()}
        given, later = self._wait([env for env in asked if env not in lost], seconds, method=" and ".join(sorted(methods)))
        return given, lost | later

    def _wait(self, envs: Sequence[int], seconds: float, method: str) -> tuple[dict[int, Any], dict[int, str]]:
        """The answers of these environments, and why others have none. Raises UserError for what a world refuses."""
        given: dict[int, Any] = {}
        lost: dict[int, str] = {}
        refused: list[str] = []
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for env in envs:
                process = self._processes[env]
                assert process
                selector.register(process.channel, selectors.EVENT_READ, (env, True))
                selector.register(process.stderr, selectors.EVENT_READ, (env, False))

            def settle(env: int) -> None:
                waiting.discard(env)
                process = self._processes[env]
                assert process
                selector.unregister(process.channel)
                if process.stderr in selector.get_map():
                    selector.unregister(process.stderr)

            waiting = set(envs)
            while waiting and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    env, answers = key.data
                    process = self._processes[env]
                    if env not in waiting or process is None:
                        continue
                    if not answers:
                        if not process.listen():
                            selector.unregister(process.stderr)
                        continue
                    answer = process.read()
                    if answer is None and not process.ended:
                        continue
                    settle(env)
                    if answer is None:
                        lost[env] = self._lose(env, process.cause_of_death())
                    elif answer[0] == "refused":
                        refused.append(answer[1])
                    elif answer[0] == "failed":
                        lost[env] = self._said = self._lose(env, answer[1])
                    else:
                        given[env] = answer[1] if answer[0] == "done" else answer[1:]
            for env in sorted(waiting):
                settle(env)
                lost[env] = self._lose(env, f"{method} took longer than {seconds:g} s, and its process was killed")
        if refused:
            raise UserError(f"{self.what}: {refused[0]}")
        return given, lost

    def _lose(self, env: int, why: str) -> str:
        process = self._processes[env]
        assert process
        process.close()
        self._processes[env] = None
        self.lost += 1
        self.why = [*self.why, f"environment {env}: {why}"][-100:]
        return why

    def _open(self) -> None:
        if self._closed:
            raise UserError(f"{self.what} was closed: make another one")


def _interpreter(what: str, python: str | None) -> str:
    if python is None:
        return sys.executable
    if not Path(python).is_file() or not os.access(python, os.X_OK):
        raise UserError(f"{what}: python = {python!r} is no program: give the path of an interpreter, such as .venv/bin/python")
    return python

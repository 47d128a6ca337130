"""Simulators with one environment per process: N processes in lock-step that write their rows into shared memory.

A plugin names a factory, `module:function`. It is called with its options in each process and returns an environment:

    class Environment:
        facts = {"dims": 7}                 # A, and further plain data for the plugin
        def reset(self, seed, variant): ...  # -> {name: numpy array}, one row of each array: images, state, reward, flags
        def step(self, action): ...          # float32 [A] -> the same names, shapes and dtypes
        def snapshot(self): ...              # -> plain data
        def restore(self, state): ...        # -> rows

`EnvironmentProcesses.call` calls any other method. The module is loaded by its path, without its parent packages: it may import
what the workers' interpreter has, and nothing of mmrl, which may be missing there.

A process that dies, raises or takes too long is killed, and its environment is lost until its next reset, which starts a new
process. An exception with the attribute `plain = True` doesn't count as a failure: it becomes a UserError with its message.
`mmrl.api.simulators.processes.simulator` makes a `mmrl.Simulator` from such environments.
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
"""Number of processes that are tried for one reset."""
ALIGNMENT = 64
"""Alignment of the arrays in shared memory, in bytes."""


class EnvironmentProcesses:
    """N environments, one per process. Not thread-safe.

    Example::

        workers = EnvironmentProcesses("mmrl_gym.environment:Environment", {"env_id": "Pendulum-v1"}, num_envs=4, what="gym/env")
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
        """what: begins every message, such as the simulator's id. python: the workers' interpreter, by default this one.
        environment: environment variables of the workers. start_s: seconds for a process to start and reset its environment once.
        timeout_s: seconds for any other call. tries: processes that are tried at first for each environment.

        Raises UserError if an environment can't be made.
        """
        self.what, self.num_envs, self.timeout_s = what, num_envs, timeout_s
        self.lost = 0
        """Number of environments that were lost so far."""
        self.why: list[str] = []
        """The last 100 reasons, each with the index of its environment; the newest last."""
        self._options, self._environment, self._start_s = dict(options), dict(environment or {}), start_s
        module, _, _ = factory.partition(":")
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.origin:
            raise UserError(f"{what}: there is no module {module!r} to make environments with: correct the factory's name")
        self._factory = (factory, spec.origin)
        self._python = _interpreter(what, python)
        self._starter = ThreadPoolExecutor(1, "worker-starter")
        """Starts all processes: a process dies with the thread that started it, and the caller's thread may end earlier."""
        self._memory = shared_memory()
        self._processes: list[Process | None] = [None] * num_envs
        self._last_exception = ""
        """Message of the last exception that an environment raised; empty if processes only died or hung."""
        self._closed = False
        try:
            self._begin(tries)
        except BaseException:
            self.close()
            raise

    # -- calls ------------------------------------------------------------------------------------------------------------

    def reset(self, seeds: Mapping[int, Any], variant: str | None = None) -> None:
        """Start environments, each from its seed. Environments that were lost, or fail now, get new processes.

        seeds: index of the environment -> its seed, or what else its `reset` takes, such as the seeds of a batch. Raises
        UserError if an environment can't be started.
        """
        self._call_with_retries({env: ("reset", (seed, variant)) for env, seed in seeds.items()})

    def restore(self, states: Mapping[int, Any]) -> None:
        """Put environments into states from `call("snapshot")`; see `reset`."""
        self._call_with_retries({env: ("restore", (state,)) for env, state in states.items()})

    def step(self, actions_NA: numpy.ndarray, envs: Sequence[int]) -> dict[int, str]:
        """Step these environments. actions_NA: float32; the rows of other environments are ignored.

        Returns the lost environments, index -> reason; their content of `rows` is undefined.
        """
        self._open()
        lost = {env: "it was lost before, and not reset since" for env in envs if self._processes[env] is None}
        going = [env for env in envs if env not in lost]
        self._actions[going] = actions_NA[going]
        _, newly = self._ask({env: ("step", ()) for env in going}, self.timeout_s)
        return lost | newly

    def call(self, envs: Iterable[int], method: str, *arguments: Any) -> list[Any]:
        """The results of a method of these environments, in the order of `envs`. Raises UserError if one is lost or fails."""
        self._open()
        envs = list(envs)
        for env in envs:
            if self._processes[env] is None:
                raise UserError(f"{self.what}: environment {env} was lost: reset it first")
        given, lost = self._ask(dict.fromkeys(envs, (method, arguments)), self.timeout_s)
        for env, why in lost.items():
            raise UserError(f"{self.what}: {method} of environment {env} failed: {why}")
        return [given[env] for env in envs]

    def call_going(self, method: str, *arguments: Any) -> tuple[dict[int, Any], dict[int, str]]:
        """(index -> the result of a method of an environment, index -> reason of those that it lost). Those that were lost before
        are in neither."""
        self._open()
        going = [env for env, process in enumerate(self._processes) if process is not None]
        return self._ask(dict.fromkeys(going, (method, arguments)), self.timeout_s)

    def pid(self, env: int) -> int | None:
        """The process id of an environment; None while it is lost."""
        process = self._processes[env]
        return process.pid if process else None

    def close(self) -> None:
        """End all processes; may be called twice."""
        if self._closed:
            return
        self._closed = True
        for process in self._processes:
            if process:
                process.close()
        self._processes = [None] * self.num_envs
        self._starter.shutdown()
        os.close(self._memory)  # arrays that are still in use keep their pages

    # -- processes --------------------------------------------------------------------------------------------------------

    def _begin(self, tries: int) -> None:
        """Start all processes at once, and lay out the shared memory by the arrays of the first environment."""
        every = list(range(self.num_envs))
        ready: dict[int, Any] = {}
        for _ in range(tries):  # render drivers hang now and then; an exception of the environment is final
            missing = [env for env in every if env not in ready]
            for env in missing:
                self._processes[env] = self._start_process()
            started, lost = self._wait(missing, self._start_s, method="start")
            ready |= started
            if not lost or self._last_exception:
                break
        if lost:
            why = self._last_exception or next(iter(lost.values()))
            raise UserError(f"{self.what} can't be made: {why}")
        layout, self.facts = ready[0]
        for env, (other, facts) in ready.items():
            if (other, facts) != (layout, self.facts):
                raise UserError(
                    f"{self.what}: environment {env} has other arrays than environment 0, {other} and {layout}: make all alike"
                )
        self._lay_out(layout)
        for env in every:
            if why := self._admit(env):
                raise UserError(f"{self.what} can't be made: {why}")

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
        """Name -> the environments' last values [N, ...]: shared memory that the next step overwrites, so copy it."""

    def _start_process(self) -> Process:
        path = sys.path if self._python == sys.executable else None
        arguments = (self._python, path, self._factory, self._memory, self._options, self._environment)
        return self._starter.submit(Process, *arguments).result()

    def _admit(self, env: int) -> str:
        """Send a process that is ready the position of its rows in the shared memory. Returns why it was lost; empty if it
        wasn't: it may die while others start."""
        process = self._processes[env]
        assert process
        try:
            process.send((self._offsets, self._total, env, int(self.facts["dims"])), self.timeout_s)
        except OSError:
            return self._lose(env, process.cause_of_death())
        return ""

    def _restart(self, envs: Sequence[int]) -> dict[int, str]:
        """Start new processes for these environments. Returns index -> reason of those that failed."""
        for env in envs:
            self._processes[env] = self._start_process()
        ready, lost = self._wait(envs, self._start_s, method="start")
        for env, (layout, _) in ready.items():
            if layout != self._layout:
                lost[env] = self._lose(env, f"it has other arrays than before: {layout} and {self._layout}")
            elif why := self._admit(env):
                lost[env] = why
        return lost

    def _call_with_retries(self, calls: Mapping[int, tuple[str, tuple[Any, ...]]]) -> None:
        """Call methods of environments until all succeed, with new processes for those that fail. Raises UserError after `TRIES`.

        calls: index of the environment -> (method, arguments)."""
        self._open()
        left = dict(calls)
        for _ in range(TRIES):
            failed = self._restart([env for env in left if self._processes[env] is None])
            _, lost = self._ask({env: call for env, call in left.items() if env not in failed}, self.timeout_s)
            failed |= lost
            left = {env: calls[env] for env in failed}
            if not left:
                return
        env, why = next(iter(failed.items()))
        raise UserError(f"{self.what}: {calls[env][0]} of environment {env} failed with {TRIES} processes: {why}")

    def _ask(self, calls: Mapping[int, tuple[str, tuple[Any, ...]]], seconds: float) -> tuple[dict[int, Any], dict[int, str]]:
        """Send each environment its call and wait. Returns (index -> result, index -> reason of the lost environments)."""
        lost: dict[int, str] = {}
        for env, message in calls.items():
            process = self._processes[env]
            assert process
            try:
                process.send(message, seconds)
            except OSError:  # it is dead or hangs
                lost[env] = self._lose(env, process.cause_of_death())
        methods = {method for method, _ in calls.values()}
        results, lost_later = self._wait([env for env in calls if env not in lost], seconds, method=" and ".join(sorted(methods)))
        return results, lost | lost_later

    def _wait(self, envs: Sequence[int], seconds: float, method: str) -> tuple[dict[int, Any], dict[int, str]]:
        """Wait for the replies of these environments. Returns (index -> result, index -> reason of the lost environments). Raises
        UserError if an environment refuses the call."""
        results: dict[int, Any] = {}
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
                        lost[env] = self._last_exception = self._lose(env, answer[1])
                    else:
                        results[env] = answer[1] if answer[0] == "done" else answer[1:]
            for env in sorted(waiting):
                settle(env)
                lost[env] = self._lose(env, f"{method} took longer than {seconds:g} s, and its process was killed")
        if refused:
            raise UserError(f"{self.what}: {refused[0]}")
        return results, lost

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

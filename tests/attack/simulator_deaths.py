"""Processes of simulators that die, hang, or write what they shouldn't: an environment is lost, and the others go on."""

from __future__ import annotations

import os
import random
import signal
import threading
import warnings
from collections.abc import Iterator

import psutil
import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.api.simulators.processes.simulator import ProcessSimulator
from mmrl.api.simulators.types import ActionSpec
from mmrl.testing.attack import Attempt
from mmrl.testing.attack.campaign import refusal_fault
from processes import gone

ENVS, STEPS, TIMEOUT_S = 3, 6, 1.0
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP, signal.SIGABRT)


def simulator_deaths(count: int = 60) -> Iterator[Attempt]:
    """It held if the other environments have the rewards of an undisturbed episode, the lost one has them after a reset, and no
    process is left. A process gets its signal before a step, or in the middle of one."""
    rng = random.Random(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each loss is told
        simulator = _walk()
        try:
            whole = _episode(simulator)
            for number in range(count):
                kind, env, step = SIGNALS[number % len(SIGNALS)], rng.randrange(ENVS), rng.randrange(STEPS)
                delay = rng.choice((0.0, 0.0, 0.0005, 0.002))
                name = f"{kind.name} to environment {env} at step {step}" + (f", {1000 * delay:g} ms later" if delay else "")
                yield Attempt(name, _fault(simulator, whole, kind, env, step, delay))
        finally:
            started = [process.pid for process in psutil.Process().children(recursive=True) if _is_environment(process)]
            simulator.close()
    left = [pid for pid in started if not gone(pid)]
    yield Attempt("processes after the simulator was closed", f"{len(left)} are left" if left else "")


def _walk() -> ProcessSimulator:
    workers = EnvironmentProcesses("toy_walk:Environment", {}, ENVS, what="toy/walk", timeout_s=TIMEOUT_S)
    return ProcessSimulator(workers, instruction="walk", action=ActionSpec(dims=2), max_steps=20, device="cpu", variants=())


def _episode(simulator: ProcessSimulator, at: int = -1, act=lambda: None) -> torch.Tensor:
    """float32 [steps, N], NaN where an environment was lost. act: done before this step."""
    simulator.reset(torch.arange(ENVS))
    rewards, there = [], torch.ones(ENVS, dtype=torch.bool)
    for step in range(STEPS):
        if step == at:
            act()
        moved = simulator.step(torch.full((ENVS, 2), 0.3 + step / 10), there)
        there &= ~moved.lost_N
        rewards.append(torch.where(there, moved.reward_N, torch.nan))
    return torch.stack(rewards)


def _fault(simulator: ProcessSimulator, whole: torch.Tensor, kind: signal.Signals, env: int, step: int, delay: float) -> str:
    simulator.reset(torch.arange(ENVS))
    pid = simulator.workers.pid(env)
    timer = threading.Timer(delay, os.kill, (pid, kind))
    try:
        found = _episode(simulator, step, timer.start if delay else lambda: os.kill(pid, kind))
        if delay:
            timer.join()  # it may come when the episode is over
        simulator.reset(torch.arange(ENVS))
        again = _episode(simulator)
    except UserError as error:
        return refusal_fault(error) or f"it ended the run: {error}"
    for other in range(ENVS):
        same = (found[:, other] == whole[:, other]) | found[:, other].isnan()
        if not same.all() or (other != env and found[:, other].isnan().any()):
            return f"environment {other} got {found[:, other].tolist()}"
    return "" if torch.equal(again, whole) else "the next episode has other rewards"


def _is_environment(process: psutil.Process) -> bool:
    try:
        return "toy_walk" in " ".join(process.cmdline())
    except psutil.Error:
        return False

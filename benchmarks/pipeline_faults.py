"""Failures of GPUs in a long run: the time that checkpoints, restarts and repeated steps cost. The events are simpy's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import simpy


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Rate and costs of GPU failures."""

    mean_hours: float = 50_000.0
    """Mean hours of one GPU between two faults that end a run: 419 in 54 days on 16,384 (The Llama 3 Herd of Models, section
    3.3.4)."""
    checkpoint_s: float = 30.0
    """Seconds to write a checkpoint, while the run stops."""
    restart_s: float = 300.0
    """Seconds until the run continues from the last checkpoint."""


def best_interval(faults: Faults, gpus: int) -> float:
    """Optimal seconds between checkpoints: sqrt(2 * seconds of one * mean time between faults) (Young 1974)."""
    return math.sqrt(2 * faults.checkpoint_s * faults.mean_hours * 3600 / gpus)


def endure(step_s: float, gpus: int, every: int, faults: Faults, steps: int = 20_000, seed: int = 0) -> dict[str, float]:
    """Simulates a long run with faults. every: steps between checkpoints. Returns `kept`, the share of time spent on steps that
    weren't lost, the number of `restarts`, and of `redone` steps."""
    env, rng = simpy.Environment(), np.random.default_rng(seed)
    done = saved = redone = restarts = 0

    def run() -> Iterator[simpy.Event]:
        nonlocal done, saved, redone, restarts
        down = False
        while done < steps:
            try:
                if down:
                    yield env.timeout(faults.restart_s)
                    down = False
                yield env.timeout(step_s)
                done += 1
                if done % every == 0:
                    yield env.timeout(faults.checkpoint_s)
                    saved = done
            except simpy.Interrupt:  # steps since the last checkpoint are lost, an unfinished checkpoint too
                restarts, redone, done, down = restarts + 1, redone + done - saved, saved, True

    def strike() -> Iterator[simpy.Event]:
        while running.is_alive:
            yield env.timeout(rng.exponential(faults.mean_hours * 3600 / gpus))
            if running.is_alive:
                running.interrupt()

    running = env.process(run())
    env.process(strike())
    env.run(until=running)
    return {"kept": steps * step_s / env.now, "restarts": restarts, "redone": redone}

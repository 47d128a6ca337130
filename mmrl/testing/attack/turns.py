"""Turns that environments must bear, and actions that simulators must."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import EnvironmentFailed
from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt, Reply
from mmrl.testing.attack.campaign import Attempt, attempt

if TYPE_CHECKING:
    import torch

TURN_S = 30.0
"""Seconds that an environment or a simulator may take for a turn."""


def attack_environment(task: Task, prompt: Prompt, what: str, turns: Mapping[str, str]) -> Iterator[Attempt]:
    """Hand hostile turns to a task's environments. It held if there is a reply, or the environment says that it failed."""
    environment: Any = None
    for name, text in turns.items():
        environment = environment or task.environment(prompt)
        if environment is None:  # this prompt is answered in one turn
            return
        replies: list[Reply] = []
        yield attempt(f"{what}: a turn of {name}", TURN_S, _turn, environment, text, replies)
        if not replies or replies[0].terminated:
            environment.close()
            environment = None
    if environment:
        environment.close()


def _turn(environment: Any, text: str, replies: list[Reply]) -> None:
    try:
        reply = environment.step(text)
    except EnvironmentFailed:
        return
    if not isinstance(reply, Reply):
        raise TypeError(f"the environment returned a {type(reply).__name__}, not a Reply")
    replies.append(reply)


def attack_simulator(what: str, make: Callable[[int], Any], dims: int, n: int = 2) -> Iterator[Attempt]:
    """Odd actions and seeds. It held if they are refused in one line or the rewards are finite, and an episode is as before."""
    import torch

    simulator = make(n)
    try:
        first = _episode(simulator, n, dims)
        for name, actions in _odd_actions(n, dims).items():
            for who, active in (("all", torch.ones(n, dtype=torch.bool)), ("none", torch.zeros(n, dtype=torch.bool))):
                yield attempt(f"{what}: {name}, {who} active", TURN_S, _step, simulator, actions, active)
            yield attempt(f"{what}: an episode after {name}", TURN_S, _repeat, simulator, n, dims, first)
        zeros = torch.zeros(n, dims)
        yield attempt(f"{what}: a mask of a wrong size", TURN_S, _step, simulator, zeros, torch.ones(n + 1, dtype=torch.bool))
        for name, arguments in _odd_resets(n).items():
            yield attempt(f"{what}: {name}", TURN_S, simulator.reset, *arguments)
            yield attempt(f"{what}: an episode after {name}", TURN_S, _repeat, simulator, n, dims, first)
    finally:
        simulator.close()


def _odd_actions(n: int, dims: int) -> dict[str, torch.Tensor]:
    import torch

    values = {"NaN": math.nan, "infinity": math.inf, "minus infinity": -math.inf, "1e30": 1e30, "a denormal number": 1e-40}
    shapes: dict[str, tuple[int, ...]] = {
        "an action too many": (n + 1, dims),
        "an action too few": (n - 1, dims),
        "a dim too many": (n, dims + 1),
    }
    shapes |= {"no dims": (n, 0), "no axis for environments": (dims,), "an axis too many": (n, dims, 1)}
    odd = {f"actions of {name}": torch.full((n, dims), value) for name, value in values.items()}
    odd |= {f"actions with {name}": torch.zeros(shape) for name, shape in shapes.items()}
    return odd | {"whole numbers": torch.zeros(n, dims, dtype=torch.long), "float64": torch.zeros(n, dims, dtype=torch.float64)}


def _odd_resets(n: int) -> dict[str, tuple[Any, ...]]:
    import torch

    seeds = torch.arange(n)
    return {
        "negative seeds": (-seeds - 1,),
        "seeds of 63 bits": (torch.full((n,), 2**63 - 1),),
        "a seed too many": (torch.arange(n + 1),),
        "an unknown variant": (seeds, None, "no such variant"),
        "an environment that isn't there": (seeds[:1], torch.tensor([n])),
    }


def _episode(simulator: Any, n: int, dims: int) -> list[torch.Tensor]:
    """The rewards of three steps from the same seeds."""
    import torch

    simulator.reset(torch.arange(n))
    active = torch.ones(n, dtype=torch.bool)
    return [simulator.step(torch.full((n, dims), 0.1), active).reward_N.clone() for _ in range(3)]


def _step(simulator: Any, actions: torch.Tensor, active: torch.Tensor) -> None:
    reward = simulator.step(actions, active).reward_N
    if not bool(reward.isfinite().all()):
        raise ValueError(f"rewards of {reward.tolist()}")


def _repeat(simulator: Any, n: int, dims: int, first: list[torch.Tensor]) -> None:
    import torch

    again = _episode(simulator, n, dims)
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        raise ValueError(f"an episode from the same seeds has other rewards: {[r.tolist() for r in again]}")

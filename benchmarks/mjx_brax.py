"""Brax's PPO on `mjx/reach`, for `mjx_ppo.py`, in an interpreter that has Brax, JAX, mujoco-warp and mmrl.

    python benchmarks/mjx_brax.py SETTINGS

SETTINGS is a JSON object, see `mjx_ppo.SETTINGS`. Brax asks for environments that JAX can compile; this one is a batch that is
stepped by callbacks to the host, which JAX calls once for each step. Prints a JSON line for each evaluation.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy
import torch
from brax.envs.base import Env, State
from brax.training.agents.ppo import networks, train
from jax.experimental import io_callback
from mmrl_mjx.simulator import Mjx


class Batch:
    """N environments on the host. All episodes have the same length, so all begin anew at once."""

    def __init__(self, num: int, length: int, first: int) -> None:
        """first: the seed of the first episode; the others follow."""
        self.simulator = Mjx(num_envs=num, device="cpu", task="reach", obs="state", dims=4)
        self.num, self.length, self.next, self.elapsed = num, length, first, 0

    def reset(self) -> numpy.ndarray:
        seeds = torch.arange(self.next, self.next + self.num)
        self.next, self.elapsed = self.next + self.num, 0
        return self.simulator.reset(seeds).state.numpy()

    def step(self, actions: Any) -> tuple[numpy.ndarray, ...]:
        """The observations that follow (after an episode's last step the next one's first), rewards, and whether it ended."""
        given = torch.from_numpy(numpy.array(actions, dtype=numpy.float32))
        moved = self.simulator.step(given, torch.ones(self.num, dtype=torch.bool))
        self.elapsed += 1
        over = self.elapsed == self.length
        seen = self.reset() if over else moved.observation.state.numpy()
        return seen, moved.reward_N.numpy(), numpy.full(self.num, over, dtype=numpy.float32)


class Reach(Env):
    """A `Batch` as Brax's training loop takes it with `wrap_env = False`."""

    def __init__(self, batch: Batch, size: int) -> None:
        """size: numbers of an observation."""
        self.batch, self.size = batch, size
        obs, row = ((batch.num, *shape) for shape in ((size,), ()))
        self.shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (obs, row, row)]

    def reset(self, rng: jax.Array) -> State:
        obs = io_callback(lambda _: self.batch.reset(), self.shapes[0], rng)
        zero = jnp.zeros(self.batch.num)
        return State(None, obs, zero, zero, {}, self.info(zero))

    def step(self, state: State, action: jax.Array) -> State:
        obs, reward, over = io_callback(self.batch.step, self.shapes, action)
        return state.replace(obs=obs, reward=reward, done=over, info=self.info(over))

    @staticmethod
    def info(over: jax.Array) -> dict[str, Any]:
        """Time limits cut off and don't end."""
        return {"truncation": over, "episode_done": over, "episode_metrics": {}, "steps": jnp.zeros_like(over)}

    @property
    def observation_size(self) -> int:
        return self.size

    @property
    def action_size(self) -> int:
        return 4

    @property
    def backend(self) -> str:
        return "mujoco-warp"


def main() -> None:
    settings = json.loads(sys.argv[1])
    batch = Batch(settings["num_envs"], settings["length"], settings["first_train"] + settings["seed"] * 10_000_000)
    judged = Batch(settings["held_out"], settings["length"], 0)
    wide = tuple(settings["hidden"])

    def evaluate(steps: int, make_policy: Any, params: Any) -> None:
        policy = jax.jit(make_policy(params, deterministic=True))
        judged.next = settings["first_test"]
        seen, success, total = judged.reset(), torch.zeros(judged.num, dtype=torch.bool), torch.zeros(judged.num)
        for _ in range(settings["length"]):
            action = policy(jnp.asarray(seen), jax.random.PRNGKey(0))[0]
            moved = judged.simulator.step(torch.from_numpy(numpy.array(action)), torch.ones(judged.num, dtype=torch.bool))
            seen, total, success = moved.observation.state.numpy(), total + moved.reward_N, success | moved.success_N
        row = {"success": success.float().mean(), "success_at_end": moved.success_N.float().mean(), "return": total.mean()}
        print(json.dumps({"steps": int(steps)} | {name: round(float(v), 4) for name, v in row.items()}), flush=True)

    train.train(
        environment=Reach(batch, batch.reset().shape[1]),
        num_timesteps=settings["updates"] * settings["num_envs"] * settings["length"],
        max_devices_per_host=1,
        wrap_env=False,
        num_envs=settings["num_envs"],
        episode_length=settings["length"],
        learning_rate=settings["learning_rate"],
        discounting=settings["gamma"],
        gae_lambda=settings["lam"],
        unroll_length=settings["length"],
        batch_size=settings["num_envs"] // settings["minibatches"],
        num_minibatches=settings["minibatches"],
        num_updates_per_batch=settings["epochs"],
        normalize_observations=True,
        network_factory=functools.partial(
            networks.make_ppo_networks, policy_hidden_layer_sizes=wide, value_hidden_layer_sizes=wide
        ),
        seed=settings["seed"],
        num_evals=settings["evaluations"] + 1,
        run_evals=False,
        policy_params_fn=evaluate,
    )


if __name__ == "__main__":
    main()

"""Writes tests/golden/dsrl_na.jsonl: what DSRL-NA's code makes of two batches: losses, and gradients of its four networks.

    git clone --recurse-submodules https://github.com/ajwagen/dsrl
    python tests/support/golden_dsrl_na.py dsrl/stable-baselines3

Of `DSRL.train` (stable_baselines3/dsrl/dsrl.py at 10e5d31, the submodule of dsrl), with linear Qs, a policy that is tanh of a
normal number, whose density is torch's, and a base whose actions are tanh of a linear map of the state and its noise. Optimisers
with the learning rate 1 move the weights, so that what is computed with weights after their update shows.
"""

from __future__ import annotations

import ast
import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.nn import functional

OUT = Path(__file__).parents[1] / "golden" / "dsrl_na.jsonl"
N, F, K, A = 5, 3, 2, 2
"""Transitions, features, actions of a chunk, numbers of one."""


class Torch(SimpleNamespace):
    """torch, whose standard normal numbers are given."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def randn(self, *shape: int) -> torch.Tensor:
        return self.given.view(shape)


class Off:
    """In place of what `DSRL` builds on."""

    def _update_learning_rate(self, optimizers: Any) -> None:
        pass


class Qs(nn.Module):
    """Several Qs, (features, action) x weights each."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights.clone())
        self.optimizer = torch.optim.SGD([self.weights], lr=1.0)

    def forward(self, features: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple((torch.cat([features, actions], 1) @ self.weights.T).split(1, 1))

    def set_training_mode(self, mode: bool) -> None:
        pass


class Policy(nn.Module):
    """tanh of a normal number: features x weights are its mean, and behind it the logarithm of its standard deviation."""

    def __init__(self, weights: torch.Tensor, noise: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights, self.noise = nn.Parameter(weights.clone()), noise
        self.optimizer = torch.optim.SGD([self.weights], lr=1.0)

    def action_log_prob(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_spread = (features @ self.weights).chunk(2, -1)
        normal = Normal(mean, log_spread.exp())
        squashed = TransformedDistribution(normal, [TanhTransform(cache_size=1)])
        action = squashed.transforms[0](mean + log_spread.exp() * self.noise.pop(0))
        return action, squashed.log_prob(action).sum(1)


def base(weights: torch.Tensor) -> Any:
    """The frozen policy: tanh of (features, noise) x weights."""

    def acts(features: torch.Tensor, noise: torch.Tensor, return_numpy: bool) -> torch.Tensor:
        return (torch.cat([features, noise.flatten(1)], 1).float() @ weights).tanh().view(-1, K, A)

    return acts


def row(seed: int, known: dict[str, Any]) -> dict[str, Any]:
    draw, wide = np.random.default_rng(seed), K * A
    shapes: dict[str, tuple[int, ...]] = {"policy": (F, 2 * wide), "base": (F + wide, wide)}
    shapes |= {name: (2, F + wide) for name in ("qs", "target_qs", "noise_qs")}
    for batch in ("", "later_"):
        shapes |= {batch + name: (N, F) for name in ("features", "after")}
        shapes |= {f"{batch}actions": (N, wide), f"{batch}rewards": (N,)}
    x = {name: torch.tensor(draw.uniform(-1, 1, shape).round(3) * 0.97, dtype=torch.float32) for name, shape in shapes.items()}
    noise = {name: torch.tensor(draw.normal(size=(N, wide)).round(3), dtype=torch.float32) for name in ("here", "there", "any")}
    choices = {"discount": [0.9, 0.99], "reach": [1.0, 1.5, 2.5], "temperature": [0.1, 1.0], "aim": [0.0, -2.0]}
    settings = {name: float(draw.choice(some)) for name, some in choices.items()}
    known["th"].given = noise["any"]
    terminated = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])
    batches = [
        SimpleNamespace(
            observations=x[f"{batch}features"],
            next_observations=x[f"{batch}after"],
            actions=x[f"{batch}actions"],
            rewards=x[f"{batch}rewards"][:, None],
            dones=terminated[:, None],
        )
        for batch in ("", "later_")
    ]
    reach = settings["reach"]
    agent = known["DSRL"].__new__(known["DSRL"])
    qs, noise_qs, actor = Qs(x["qs"]), Qs(x["noise_qs"]), Policy(x["policy"], [noise["here"], noise["there"]])
    log_temperature = torch.tensor([settings["temperature"]]).log().requires_grad_()
    said: dict[str, float] = {}
    agent.__dict__ |= {
        "policy": SimpleNamespace(
            set_training_mode=lambda mode: None, scale_action=lambda a: a / reach, unscale_action=lambda a: a * reach
        ),
        "actor": actor,
        "critic": qs,
        "critic_target": Qs(x["target_qs"]),
        "critic_noise": noise_qs,
        "ent_coef_optimizer": torch.optim.SGD([log_temperature], lr=1.0),
        "log_ent_coef": log_temperature,
        "replay_buffer": SimpleNamespace(sample=lambda size, env: batches.pop(0)),
        "diffusion_policy": base(x["base"]),
        "logger": SimpleNamespace(record=lambda name, value, exclude=None: said.update({name: float(value)})),
    }
    agent.__dict__ |= {"target_entropy": settings["aim"], "gamma": settings["discount"], "tau": 0.005, "device": "cpu"}
    agent.__dict__ |= {"diffusion_act_chunk": K, "diffusion_act_dim": A, "noise_critic_grad_steps": 1, "_n_updates": 0}
    agent.__dict__ |= {"actor_gradient_steps": -1, "critic_backup_combine_type": "min", "target_update_interval": 1}
    agent.__dict__ |= {"use_sde": False, "_vec_normalize_env": None, "batch_norm_stats": [], "batch_norm_stats_target": []}
    modules = {"qs": qs, "noise_qs": noise_qs, "policy": actor}
    old = copy.deepcopy({name: module.weights.detach() for name, module in modules.items()})
    agent.train(1, N)
    found = {name: value.tolist() for name, value in x.items()} | settings | {"terminated": terminated.tolist()}
    found |= {f"noise_{name}": value.tolist() for name, value in noise.items()}
    found |= {"loss": said["train/actor_loss"], "qs_loss": said["train/critic_loss"]}
    found |= {"noise_qs_loss": said["train/noise_critic_loss"]}
    found |= {f"{name}_gradient": (old[name] - module.weights.detach()).tolist() for name, module in modules.items()}
    found["temperature_gradient"] = np.log(settings["temperature"]) - log_temperature.item()
    found["target_qs_after"] = agent.critic_target.weights.tolist()
    return {name: _rounded(value) for name, value in found.items()}


def _rounded(x: Any) -> Any:
    return [_rounded(y) for y in x] if isinstance(x, list) else round(float(x), 6)


def main() -> None:
    def polyak_update(sources: Any, targets: Any, rate: float) -> None:
        with torch.no_grad():
            for source, target in zip(sources, targets, strict=True):
                target.mul_(1 - rate).add_(rate * source)

    file = Path(sys.argv[1]) / "stable_baselines3" / "dsrl" / "dsrl.py"
    known: dict[str, Any] = {"th": Torch(), "np": np, "F": functional, "polyak_update": polyak_update, "OffPolicyAlgorithm": Off}
    (agent,) = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef) and node.name == "DSRL"]
    agent.body = [node for node in agent.body if getattr(node, "name", "") in ("train", "update_noise_critic")]
    assert len(agent.body) == 2
    exec("from __future__ import annotations\n" + ast.unparse(agent), known)
    OUT.write_text("".join(json.dumps(row(seed, known), sort_keys=True) + "\n" for seed in range(12)))


if __name__ == "__main__":
    main()

"""Writes tests/golden/iql.jsonl: what CORL's IQL makes of a batch: losses, and gradients of its three networks.

    git clone https://github.com/tinkoff-ai/CORL && git -C CORL checkout 6afec90
    python tests/support/golden_iql.py CORL

Of `ImplicitQLearning.train` (algorithms/offline/iql.py), with linear Qs and values and a policy that is tanh of a normal number,
whose density is torch's. An optimiser with the learning rate 1 moves the weights, so that what is computed with weights after
their update shows.
"""

from __future__ import annotations

import ast
import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR

OUT = Path(__file__).parents[1] / "golden" / "iql.jsonl"
N, F, A = 5, 3, 2


def defined(file: Path, names: set[str], known: dict[str, Any]) -> None:
    """Functions and classes of a file that are run without the imports of the file."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            exec(compile(ast.Module([node], []), str(file), "exec"), known)


class Values(nn.Module):
    """features x weights."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features @ self.weights


class Twins(nn.Module):
    """Two Qs, (features, action) x weights each."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def both(self, features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nf,ef->en", torch.cat([features, actions], 1), self.weights)

    def forward(self, features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return torch.min(*self.both(features, actions))


class Policy(nn.Module):
    """tanh of a normal number: features x weights are its mean, and behind it the logarithm of its standard deviation."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, features: torch.Tensor) -> TransformedDistribution:
        mean, log_spread = (features @ self.weights).chunk(2, -1)
        return TransformedDistribution(Normal(mean, log_spread.exp()), [TanhTransform(cache_size=1)])


def row(seed: int, known: dict[str, Any]) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    shapes = {"features": (N, F), "after": (N, F), "actions": (N, A), "rewards": (N,), "values": (F,)}
    shapes |= {"qs": (2, F + A), "target_qs": (2, F + A), "policy": (F, 2 * A)}
    tensors = {
        name: torch.tensor(draw.uniform(-1, 1, shape).round(3) * 0.97, dtype=torch.float32) for name, shape in shapes.items()
    }
    settings = {
        "expectile": float(draw.choice([0.5, 0.7, 0.9])),
        "inverse_temperature": float(draw.choice([0.0, 3.0, 10.0])),
        "discount": float(draw.choice([0.9, 0.99])),
    }
    terminated = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])
    values, twins, policy = Values(tensors["values"].clone()), Twins(tensors["qs"].clone()), Policy(tensors["policy"].clone())
    before = {"values": values, "qs": twins, "policy": policy}
    old = copy.deepcopy({name: module.weights.detach() for name, module in before.items()})
    moving = {name: torch.optim.SGD(module.parameters(), lr=1.0) for name, module in before.items()}
    agent = known["ImplicitQLearning"](
        max_action=1.0,
        actor=policy,
        actor_optimizer=moving["policy"],
        q_network=twins,
        q_optimizer=moving["qs"],
        v_network=values,
        v_optimizer=moving["values"],
        iql_tau=settings["expectile"],
        beta=settings["inverse_temperature"],
        discount=settings["discount"],
        tau=0.005,
    )
    agent.q_target = Twins(tensors["target_qs"].clone()).requires_grad_(False)
    batch = [tensors["features"], tensors["actions"], tensors["rewards"][:, None], tensors["after"], terminated[:, None]]
    losses = agent.train(batch)
    found = {name: x.tolist() for name, x in tensors.items()} | settings | {"terminated": terminated.tolist()}
    found |= {"loss": losses["actor_loss"], "values_loss": losses["value_loss"], "qs_loss": losses["q_loss"]}
    found |= {f"{name}_gradient": (old[name] - module.weights.detach()).tolist() for name, module in before.items()}
    found["target_qs_after"] = agent.q_target.weights.tolist()
    return {name: _rounded(x) for name, x in found.items()}


def _rounded(x: Any) -> Any:
    return [_rounded(y) for y in x] if isinstance(x, list) else round(x, 6)


def main() -> None:
    known: dict[str, Any] = {"torch": torch, "nn": nn, "np": np, "F": functional, "copy": copy}
    known |= {"CosineAnnealingLR": CosineAnnealingLR, "Dict": dict, "Any": Any, "TensorBatch": list, "EXP_ADV_MAX": 100.0}
    names = {"asymmetric_l2_loss", "soft_update", "ImplicitQLearning"}
    defined(Path(sys.argv[1]) / "algorithms" / "offline" / "iql.py", names, known)
    OUT.write_text("".join(json.dumps(row(seed, known), sort_keys=True) + "\n" for seed in range(12)))


if __name__ == "__main__":
    main()

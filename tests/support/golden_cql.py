"""Writes tests/golden/cql.jsonl: what CORL's CQL and Cal-QL make of a batch: the loss of two critics, and its gradient.

    git clone https://github.com/tinkoff-ai/CORL && git -C CORL checkout 6afec90
    python tests/support/golden_cql.py CORL

Of `CalQL._q_loss` (algorithms/finetune/cal_ql.py) with importance weights, with and without calibration. Qs are linear, and
what the policy draws is given.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

OUT = Path(__file__).parents[1] / "golden" / "cql.jsonl"
N, F, A, M = 5, 3, 2, 3


def q_loss(file: Path) -> Any:
    known: dict[str, Any] = {"torch": torch, "np": np, "F": functional, "Dict": dict, "Tuple": tuple}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "_q_loss":
            exec(compile(ast.Module([node], []), str(file), "exec"), known)
    return known["_q_loss"]


def linear(weights: torch.Tensor) -> Any:
    """Qs of (features, action) x weights, of one action or of several."""

    def q(features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        wide = features[:, None].expand(-1, actions.shape[1], -1) if actions.ndim == 3 else features
        return torch.cat([wide, actions], -1) @ weights

    return q


def row(seed: int, loss_of: Any) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    shapes = {"seen": (N, F), "after": (N, F), "actions": (N, A), "following": (N, A), "here": (N, M, A), "there": (N, M, A)}
    shapes |= {"rewards": (N,), "returns": (N,), "following_logprobs": (N,), "here_logprobs": (N, M), "there_logprobs": (N, M)}
    shapes |= {"qs": (2, F + A), "target_qs": (2, F + A)}
    x = {name: torch.tensor(draw.uniform(-1, 1, shape).round(3), dtype=torch.float32) for name, shape in shapes.items()}
    terminated, calibrated = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]), bool(seed % 2)
    how = {"conservative": float(draw.choice([0.5, 5.0])), "gamma": 0.9, "temperature": 0.3, "calibrated": calibrated}
    drawn = iter(["following", "here", "there"])

    def actor(features: torch.Tensor, repeat: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        name = next(drawn)
        assert torch.equal(features, x["seen" if name == "here" else "after"])
        return x[name], x[f"{name}_logprobs"]

    weights = x["qs"].clone().requires_grad_()
    agent = SimpleNamespace(
        critic_1=linear(weights[0]), critic_2=linear(weights[1]), actor=actor,
        target_critic_1=linear(x["target_qs"][0]), target_critic_2=linear(x["target_qs"][1]),
        cql_max_target_backup=False, backup_entropy=True, discount=how["gamma"], cql_n_actions=M, cql_temp=1.0,
        cql_importance_sample=True, cql_clip_diff_min=-np.inf, cql_clip_diff_max=np.inf, cql_lagrange=False,
        cql_alpha=how["conservative"], _calibration_enabled=calibrated,
    )  # fmt: skip
    torch.manual_seed(seed)
    x["anywhere"] = torch.empty(N, M, A).uniform_(-1, 1)
    torch.manual_seed(seed)
    loss, *_ = loss_of(
        agent, x["seen"], x["actions"], x["after"], x["rewards"][:, None], terminated[:, None], x["returns"],
        torch.tensor(how["temperature"]), {},
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(loss, weights)
    found = {name: value.tolist() for name, value in x.items()} | how | {"terminated": terminated.tolist()}
    return {name: _rounded(value) for name, value in (found | {"loss": loss.item(), "gradient": gradient.tolist()}).items()}


def _rounded(x: Any) -> Any:
    return [_rounded(y) for y in x] if isinstance(x, list) else x if isinstance(x, bool) else round(x, 6)


if __name__ == "__main__":
    published = q_loss(Path(sys.argv[1]) / "algorithms" / "finetune" / "cal_ql.py")
    OUT.write_text("".join(json.dumps(row(seed, published), sort_keys=True) + "\n" for seed in range(12)))

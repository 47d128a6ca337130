"""Writes tests/golden/dppo.jsonl: what DPPO's released code says of chains: log-probabilities of their steps, and the policy's
loss after the weights have changed.

    git clone https://github.com/irom-princeton/dppo && git -C dppo checkout cc7234a
    python tests/support/golden_dppo.py dppo

Of `VPGDiffusion.forward`, `get_logprobs` and `PPODiffusion.loss`. The actor is a linear map of point, time and observation. Where
the code follows DDIM, predicted actions aren't clipped: it then predicts the noise anew, which LeRobot doesn't. The
change is so small that the code's limits of a number's log-probability, -5 and 2, have no effect.
"""

from __future__ import annotations

import ast
import copy
import json
import logging
import math
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

OUT = Path(__file__).parents[1] / "golden" / "dppo.jsonl"
COMMIT = "cc7234a"
N, C, D, EXECUTED = 3, 4, 2, 3
FILES = {
    "sampling": ("cosine_beta_schedule", "extract", "make_timesteps"),
    "eta": ("EtaFixed",),
    "diffusion": ("DiffusionModel",),
    "diffusion_vpg": ("VPGDiffusion",),
    "diffusion_ppo": ("PPODiffusion",),
}
CASES: list[dict[str, Any]] = [
    {"denoising_steps": 6, "ft_denoising_steps": 6},
    {"denoising_steps": 6, "ft_denoising_steps": 3, "min_sampling_denoising_std": 0.05, "gamma_denoising": 0.9},
    {"denoising_steps": 4, "ft_denoising_steps": 2, "predict_epsilon": False, "min_logprob_denoising_std": 0.2},
    {"denoising_steps": 20, "ft_denoising_steps": 5, "use_ddim": True, "ddim_steps": 5, "denoised_clip_value": None},
    {"denoising_steps": 20, "ft_denoising_steps": 3, "use_ddim": True, "ddim_steps": 10, "denoised_clip_value": None, "eta": 0.5},
]


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.by_time = nn.Parameter(0.9 * torch.eye(D) + 0.1 * torch.randn(D, D)), nn.Parameter(0.02 * torch.randn(D))
        self.by_state = nn.Parameter(0.3 * torch.randn(1, D))

    def forward(self, x: torch.Tensor, times: torch.Tensor, cond: dict[str, torch.Tensor]) -> torch.Tensor:
        return x @ self.mix + times[:, None, None] * self.by_time + cond["state"] @ self.by_state


class Critic(nn.Module):
    """Its loss isn't looked at."""

    def forward(self, cond: dict[str, torch.Tensor]) -> torch.Tensor:
        return cond["state"].flatten()


def known(folder: Path) -> dict[str, Any]:
    """The code's classes and functions, which are run without the imports of its files."""
    found: dict[str, Any] = {"torch": torch, "nn": nn, "np": np, "math": math, "logging": logging, "copy": copy}
    found |= {"F": nn.functional, "Normal": torch.distributions.Normal, "Optional": Any, "log": logging.getLogger()}
    found |= {"Sample": namedtuple("Sample", "trajectories chains")}
    found["Optional"] = {float: float}
    for file, names in FILES.items():
        for node in ast.walk(ast.parse((folder / "model" / "diffusion" / f"{file}.py").read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
                exec(compile(ast.Module([node], []), file, "exec"), found)
    return found


def row(case: dict[str, Any], seed: int, code: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(seed + 20)
    eta, options = case.get("eta", 1.0), {name: value for name, value in case.items() if name != "eta"}
    sizes = {"horizon_steps": C, "action_dim": D, "obs_dim": 1, "device": "cpu", "randn_clip_value": 3}
    losses = {"gamma_denoising": 0.99, "clip_ploss_coef": 0.01, "norm_adv": False}
    made = code["PPODiffusion"](
        actor=Linear(), critic=Critic(), eta=code["EtaFixed"](base_eta=eta), **{**sizes, **losses, **options}
    )
    cond, advantages = {"state": torch.randn(N, 1, 1)}, torch.randn(N)
    chains = made(cond).chains
    old = made.get_logprobs(cond, chains).detach()
    steps = options["ft_denoising_steps"]
    with torch.no_grad():
        for weight in made.actor_ft.parameters():
            weight.add_((0.003 if options.get("use_ddim") else 0.006) * torch.randn_like(weight))
    new = made.get_logprobs(cond, chains).detach()
    assert new.min() > -5 and new.max() < 2
    each = torch.arange(N).repeat_interleave(steps)
    found = made.loss(
        {"state": cond["state"][each]},
        *(chains[:, part].flatten(0, 1) for part in (slice(-1), slice(1, None))),
        torch.arange(steps).repeat(N),
        torch.zeros(N * steps),
        torch.zeros(N * steps),
        advantages[each].clone(),
        old,
        reward_horizon=EXECUTED,
    )
    loss, _, _, clipped, *_ = found
    loss.backward()
    actor = {name: weight.detach() for name, weight in made.actor_ft.named_parameters()}
    return {
        "case": {**losses, **case, "eta": eta},
        "betas": made.betas,
        "state": cond["state"].flatten(),
        "chains": chains,
        "advantages": advantages,
        "old": old.unflatten(0, (N, steps)),
        "new": new.unflatten(0, (N, steps)),
        "actor": actor,
        "loss": loss.item(),
        "clipped": clipped,
        "slope": made.actor_ft.by_time.grad,
    }


def plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: plain(x) for name, x in found.items()}
    if isinstance(found, torch.Tensor):
        return plain(found.tolist())
    return [plain(x) for x in found] if isinstance(found, list) else float(f"{found:.8g}") if type(found) is float else found


def main() -> None:
    code = known(Path(sys.argv[1]))
    rows = [row(case, seed, code) for seed, case in enumerate(CASES)]
    how = {"how": f"ran irom-princeton/dppo @{COMMIT}"}
    OUT.write_text("".join(json.dumps(plain(one) | how, sort_keys=True) + "\n" for one in rows))


if __name__ == "__main__":
    main()

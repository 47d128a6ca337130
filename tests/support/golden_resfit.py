"""Writes tests/golden/resfit.jsonl: what ResFiT's released code makes of a batch: targets, the policy's loss and gradient.

    git clone https://github.com/amazon-science/residual-offpolicy-rl && git -C residual-offpolicy-rl checkout 6bd9f7c
    python tests/support/golden_resfit.py residual-offpolicy-rl

Of `QAgent.update_critic` and `_compute_actor_loss`, for a residual policy tanh(features x weights) x scale and Qs that are
concave in the action. The loss of the critics isn't there: the code squares the mean error over critics, where TD3 takes the
mean of squared errors.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import distributions as pyd
from torch import nn

OUT = Path(__file__).parents[1] / "golden" / "resfit.jsonl"
COMMIT = "6bd9f7c"
N, F, A, E = 5, 3, 2, 4


def defined(file: Path, names: set[str], known: dict[str, Any]) -> None:
    """Functions and classes of a file that are run without the imports of the file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            exec(compile(ast.Module([node], []), str(file), "exec"), known)


def q_of(features_nF: torch.Tensor, actions_nA: torch.Tensor, peaks_EA: torch.Tensor, slopes_EF: torch.Tensor) -> torch.Tensor:
    """[E, n, 1]."""
    far = (actions_nA - peaks_EA[:, None]).square().sum(-1)
    return (torch.einsum("nf,ef->en", features_nF, slopes_EF) - far)[..., None]


def row(seed: int, known: dict[str, Any]) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    tensors = {
        name: torch.tensor(draw.uniform(-1, 1, shape).round(3), dtype=torch.float32)
        for name, shape in {
            "features": (N, F),
            "after": (N, F),
            "base": (N, A),
            "base_after": (N, A),
            "rewards": (N,),
            "weights": (F, A),
            "target_weights": (F, A),
            "peaks": (E, A),
            "slopes": (E, F),
        }.items()
    }
    noise = torch.tensor(draw.normal(size=(N, A)).round(3), dtype=torch.float32)
    discounts = torch.tensor([0.97, 0.0, 0.97, 0.9, 0.0])
    scale, spread, clip = float(draw.choice([0.2, 1.0])), float(draw.choice([0.025, 0.2])), float(draw.choice([0.05, 0.3]))

    def actor(weights: torch.Tensor) -> Any:
        def forward(obs: dict[str, torch.Tensor], std: float) -> Any:
            return known["TruncatedNormal"]((obs["feat"] @ weights).tanh() * scale, std)

        return SimpleNamespace(forward=forward, training=True)

    class Critic(nn.Module):
        """Its Qs, by the code's own choice among them."""

        def __init__(self) -> None:
            super().__init__()
            self.peaks = nn.Parameter(tensors["peaks"].clone())

        cfg = SimpleNamespace(min_q_heads=E, policy_gradient_type="ensemble_mean")  # all of them: no draw
        loss_cfg = SimpleNamespace(type="mse")

        def forward(self, feat: torch.Tensor, prop: object, act: torch.Tensor) -> torch.Tensor:
            return q_of(feat, act, self.peaks, tensors["slopes"])

        def q_value(self, *given: Any) -> torch.Tensor:
            return known["q_value"](self, *given)

        def q_value_for_policy(self, *given: Any) -> torch.Tensor:
            return known["q_value_for_policy"](self, *given)

    still = SimpleNamespace(zero_grad=lambda **_: None, step=lambda: None)  # an optimiser that leaves all as it is
    weights = tensors["weights"].clone().requires_grad_()
    known["_standard_normal"] = lambda shape, **_: noise.clone()
    agent = SimpleNamespace(
        actor=actor(weights),
        actor_target=actor(tensors["target_weights"]),
        critic=Critic(),
        critic_target=Critic(),
        residual_actor=True,
        encoders=nn.ModuleList(),
        encoder_opt=still,
        critic_opt=still,
        cfg=SimpleNamespace(
            target_action_noise=True,
            stddev_clip=clip,
            clip_q_target_to_reward_range=False,
            critic_grad_clip_norm=1.0,
            actor=SimpleNamespace(action_l2_reg_weight=0.0),
        ),
    )
    agent._act_default = lambda **given: known["_act_default"](agent, **given)

    def obs(features: str, base: str) -> dict[str, torch.Tensor]:
        return {"feat": tensors[features], "observation.state": torch.zeros(N, 1), "observation.base_action": tensors[base]}

    metrics = known["update_critic"](
        agent, obs("features", "base"), tensors["base"], tensors["rewards"], discounts, obs("after", "base_after"), spread
    )
    loss = known["_compute_actor_loss"](agent, obs("features", "base"), spread)[0]
    loss.backward()
    found_row = {name: x.tolist() for name, x in tensors.items()} | {"noise": noise.tolist(), "discounts": discounts.tolist()}
    found_row |= {"residual": scale, "target_noise": spread, "noise_clip": clip}
    found_row |= {"targets": metrics["_target_q"].tolist(), "loss": loss.item(), "gradient": weights.grad.tolist()}
    return {name: _rounded(x) for name, x in found_row.items()}


def _rounded(x: Any) -> Any:
    return [_rounded(y) for y in x] if isinstance(x, list) else round(x, 6)


def main() -> None:
    code = Path(sys.argv[1]) / "resfit" / "rl_finetuning" / "off_policy"
    known: dict[str, Any] = {"torch": torch, "nn": nn, "np": np, "re": re, "pyd": pyd, "_standard_normal": None}
    defined(code / "common_utils" / "utils.py", {"TruncatedNormal"}, known)
    defined(code / "rl" / "critic.py", {"q_value", "q_value_for_policy"}, known)
    defined(code / "rl" / "q_agent.py", {"_act_default", "update_critic", "_compute_actor_loss"}, known)
    OUT.write_text("".join(json.dumps(row(seed, known), sort_keys=True) + "\n" for seed in range(12)))


if __name__ == "__main__":
    main()

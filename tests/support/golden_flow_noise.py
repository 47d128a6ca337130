"""Writes tests/golden/flow-noise.jsonl: what pi_RL's released code says of the path of a flow with learned noise.

    git clone https://github.com/RLinf/RLinf && git -C RLinf checkout a3816b5
    python tests/support/golden_flow_noise.py RLinf

Of `get_log_prob_value` with `joint_logprob`: the log-probability and the entropy of each number, averaged over the path as
`default_forward` averages them, and the gradient of the former by the last layer of `ExploreNoiseNet`. The expert is a linear map
of point and time in place of pi0's.
"""

from __future__ import annotations

import ast
import json
import math
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

OUT = Path(__file__).parents[1] / "golden" / "flow-noise.jsonl"
COMMIT = "a3816b5"
N, C, D, H = 2, 3, 2, 5
METHODS = (
    *("get_log_prob_value", "sample_mean_var_val", "get_velocity", "get_logprob_norm", "gaussian_entropy"),
    *("_get_timesteps", "_get_noise_level"),
)


def defined(file: Path, names: tuple[str, ...], known: dict[str, Any]) -> dict[str, Any]:
    """Definitions of a file, at its top or in a class, that are run without the imports of the file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign):
            name = getattr(node, "name", "") or getattr(node.targets[0], "id", "")  # type: ignore[union-attr]
            if name in names:
                exec(compile(ast.Module([node], []), str(file), "exec"), known)
    return known


def main() -> None:
    models = Path(sys.argv[1]) / "rlinf" / "models" / "embodiment"
    known: dict[str, Any] = {"torch": torch, "nn": torch.nn, "math": math, "OrderedDict": OrderedDict}
    noise = defined(models / "modules" / "explore_noise_net.py", ("activation_dict", "MLP", "ExploreNoiseNet"), dict(known))
    published = defined(models / "openpi" / "openpi_action_model.py", METHODS, dict(known))

    class Policy:
        use_vlm_value = False

        def __init__(self, steps: int, head: Any, expert: Any, out: Any) -> None:
            self.noise_head, self.expert, self.action_out_proj = head, expert, out
            self.config = SimpleNamespace(num_steps=steps, noise_method="flow_noise", joint_logprob=True, noise_anneal=False)
            vars(self.config).update(noise_level=0.5, add_value_head=False, safe_get_logprob=False, value_after_vlm=False)

        def _build_prefix_cache(self, *_: Any) -> tuple[None, None, None]:
            return None, None, None

        def get_suffix_out(self, state: Any, mask: Any, cache: Any, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return self.expert(torch.cat([x, time[:, None, None].expand(*x.shape[:2], 1)], -1)).tanh()

    for name in METHODS:
        setattr(Policy, name, published[name])

    rows = []
    for case in range(6):
        torch.manual_seed(case)
        steps, ends = 1 + case % 4, [0.08, 0.16] if case % 2 else [0.02, 0.5]
        made = {"activation_type": "tanh", "noise_logvar_range": ends, "noise_scheduler_type": "learn"}
        head = noise["ExploreNoiseNet"](in_dim=H, out_dim=D, hidden_dims=[128, 64], **made)
        with torch.no_grad():
            for layer in head.mlp_logvar.moduleList:
                layer[0].weight.copy_(weights(layer[0].weight.shape, case))
                layer[0].bias.copy_(weights(layer[0].bias.shape, case + 50))
        expert, out = torch.nn.Linear(D + 1, H), torch.nn.Linear(H, D)
        policy: Any = Policy(steps, head, expert, out)
        path = (torch.randn(N, steps + 1, C, D) * 0.3).round(decimals=3)
        inds = torch.arange(steps)[None].repeat(N, 1)
        with torch.no_grad():
            for layer in (expert, out):
                for parameter in layer.parameters():
                    parameter.copy_(parameter.round(decimals=3))
        logprobs, _, entropy = policy.get_log_prob_value(None, None, None, None, torch.zeros(N, 1), path, inds)
        logprobs.mean(1).sum().backward()
        row: dict[str, Any] = {"steps": steps, "ends": ends, "seed": case, "path": path, "logprob": logprobs.mean(1)}
        row |= {"entropy": entropy.mean(1), "slope": head.mlp_logvar.moduleList[-1][0].bias.grad}
        row |= {"expert": [expert.weight, expert.bias], "out": [out.weight, out.bias]}
        rows.append(json.dumps(plain(row) | {"how": f"ran RLinf/RLinf @{COMMIT}"}, sort_keys=True))
    OUT.write_text("\n".join(rows) + "\n")


def weights(shape: Any, seed: int) -> torch.Tensor:
    """Numbers in [-0.5, 0.5] that a test can make again without a random generator."""
    count = torch.arange(math.prod(shape), dtype=torch.float64)
    return ((torch.sin(count * 12.9898 + seed) * 43758.5453) % 1 - 0.5).float().view(*shape)


def plain(row: Any) -> Any:
    if isinstance(row, dict):
        return {name: plain(x) for name, x in row.items()}
    if isinstance(row, torch.Tensor):
        return [round(x, 6) for x in row.flatten().tolist()] if row.dim() == 1 else [plain(x) for x in row.detach()]
    return [plain(x) for x in row] if isinstance(row, list) else row


if __name__ == "__main__":
    main()

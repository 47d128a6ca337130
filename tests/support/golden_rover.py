"""Writes tests/golden/rover.jsonl: what ROVER's released code makes of rewards, log-probabilities and logits.

    git clone https://github.com/tinnerhrhe/ROVER && git -C ROVER checkout b0fa587
    python tests/support/golden_rover.py ROVER

Of its countdown task: the rewards (`compute_rover_reward`), the mean over the vocabulary (`sum_log_softmax`), the lines of
`DataParallelROVERActor.update_policy` from `q_values` to `rover_loss`, and the gradient of the loss by the log-probabilities.
"""

from __future__ import annotations

import ast
import json
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

OUT = Path(__file__).parents[1] / "golden" / "rover.jsonl"
COMMIT = "b0fa587"


def functions(path: Path, *names: str, **known: Any) -> dict[str, Any]:
    """These functions of a file, without its imports."""
    tree = ast.parse(path.read_text())
    chosen = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    space = {"torch": torch, "defaultdict": defaultdict, **known}
    exec(compile(ast.Module(chosen, []), str(path), "exec"), space)
    return space


def rounded(values: torch.Tensor, digits: int) -> Any:
    """Nested lists of numbers with few digits."""
    return json.loads(json.dumps(values.tolist()), parse_float=lambda text: round(float(text), digits))


def main() -> None:
    verl = Path(sys.argv[1]) / "Countdown" / "verl"
    useful = functions(verl / "utils" / "torch_functional.py", "sum_log_softmax", "masked_mean")
    found = functions(
        verl / "trainer" / "ppo" / "core_algos.py", "compute_rover_reward", "compute_rover_loss", verl_F=SimpleNamespace(**useful)
    )
    actor = (verl / "workers" / "actor" / "dp_actor.py").read_text()
    lines = actor[actor.index("class DataParallelROVERActor") :].splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("q_values = (log_prob"))
    end = next(i for i, line in enumerate(lines) if line.strip().startswith("rover_loss = ")) + 1
    steps = compile(textwrap.dedent("".join(lines[start:end])), "dp_actor.py", "exec")
    noise, rows = torch.Generator().manual_seed(0), []
    for _ in range(72):
        n, t, v = (int(torch.randint(low, high, (), generator=noise)) for low, high in ((2, 7), (1, 6), (3, 9)))
        groups = torch.randint(0, 2, (n,), generator=noise).sort().values
        rewards = torch.randint(0, 5, (n,), generator=noise) / 4
        lengths = torch.randint(1, t + 1, (n,), generator=noise)
        lengths[0] = t
        mask = (torch.arange(t)[None] < lengths[:, None]).float()
        old, now = (torch.randn(n, t, v, generator=noise) for _ in range(2))
        old, now = old.round(decimals=3), (old + 0.3 * now).round(decimals=3)
        ids = torch.randint(0, v, (n, t, 1), generator=noise)
        log_prob = now.log_softmax(-1).gather(-1, ids)[..., 0].requires_grad_()
        paid = torch.zeros(n, t)
        paid[torch.arange(n), lengths - 1] = rewards
        advantages, _ = found["compute_rover_reward"](paid, mask, groups.tolist())
        space = {
            "torch": torch,
            "core_algos": SimpleNamespace(**found),
            "self": SimpleNamespace(step=1),
            "log_prob": log_prob,
            "old_log_prob": old.log_softmax(-1).gather(-1, ids)[..., 0],
            "response_mask": mask,
            "current_q": useful["sum_log_softmax"](now),
            "old_logits": useful["sum_log_softmax"](old),
            "low_var_reward": advantages,
        }
        exec(steps, space)
        space["rover_loss"].backward()
        row = {
            "rewards": rewards.tolist(),
            "groups": groups.tolist(),
            "lengths": lengths.tolist(),
            "ids": ids[..., 0].tolist(),
            "logits": rounded(now, 3),
            "old_logits": rounded(old, 3),
            "loss": space["rover_loss"].item(),
            "gradient": rounded(log_prob.grad, 8),
            "how": f"ran tinnerhrhe/ROVER @{COMMIT}: Countdown/verl/trainer/ppo/core_algos.py, workers/actor/dp_actor.py",
        }
        rows.append(json.dumps(row))
    OUT.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()

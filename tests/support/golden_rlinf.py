"""Writes tests/golden/rlinf-bootstrap.jsonl: advantages and returns of RLinf's released code where episodes are bootstrapped.

    git clone https://github.com/RLinf/RLinf && git -C RLinf checkout a3816b5
    python tests/support/golden_rlinf.py RLinf

Its `compute_bootstrap_rewards` after every call of the policy, for environments that begin anew by themselves, and then its
generalised advantage estimation over the whole rows, with `reward_type: action_level` and without standardisation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from golden_flow_noise import COMMIT, defined, plain

OUT = Path(__file__).parents[1] / "golden" / "rlinf-bootstrap.jsonl"
GOES_ON, TERMINATED, TRUNCATED = range(3)
HOW = f"ran RLinf/RLinf @{COMMIT}: env_worker.py, compute_bootstrap_rewards; algorithms, preprocess_... and compute_gae_..."


class Config(SimpleNamespace):
    def get(self, name: str, otherwise: Any) -> Any:
        return getattr(self, name, otherwise)


def main() -> None:
    package = Path(sys.argv[1]) / "rlinf"
    known = {"torch": torch, "register_advantage": lambda _: lambda f: f, "safe_normalize": None}
    known["Worker"] = SimpleNamespace(timer=lambda _: lambda f: f)
    pay = defined(package / "workers/env/env_worker.py", ("compute_bootstrap_rewards",), dict(known))["compute_bootstrap_rewards"]
    name = "compute_gae_advantages_and_returns"
    estimate = defined(package / "algorithms/advantages.py", (name,), dict(known))[name]
    name = "preprocess_embodied_advantages_inputs"
    flat = defined(package / "algorithms/utils.py", (name,), dict(known))[name]

    rows = []
    for case in range(12):
        noise = torch.Generator().manual_seed(case)
        calls, chunk, envs = 3 + case % 4, (1, 1, 3)[case % 3], 2
        kind, gamma, lam = ("standard", "always")[case % 2], (0.99, 0.9)[case % 2], (0.95, 0.7)[case // 2 % 2]
        sizes = ((calls, chunk), (calls + 1, chunk), (calls, 1))
        rewards, values, last = (torch.randn(n, envs, k, generator=noise).round(decimals=3) for n, k in sizes)
        ends = torch.randint(0, 3, (calls, envs), generator=noise)
        ends[-1] = 1 + (torch.arange(envs) + case) % 2
        dones = torch.zeros(calls + 1, envs, chunk, dtype=torch.bool)
        cuts = dones.clone()
        dones[1:, :, -1], cuts[1:, :, -1] = ends > GOES_ON, ends == TRUNCATED
        train = SimpleNamespace(auto_reset=True)
        worker = SimpleNamespace(
            cfg=SimpleNamespace(env=SimpleNamespace(train=train), algorithm=Config(gamma=gamma, bootstrap_type=kind))
        )
        paid = [
            pay(worker, SimpleNamespace(rewards=rewards[t], dones=dones[t + 1], truncations=cuts[t + 1]), last[t], None)
            for t in range(calls)
        ]
        given = flat(torch.stack(paid), dones, values, reward_type="action_level", adv_type="gae")
        given |= {"gamma": gamma, "gae_lambda": lam, "normalize_advantages": False}
        advantages, returns = estimate(**given)
        row: dict[str, Any] = {"bootstrap": kind, "gamma": gamma, "lam": lam, "rewards": rewards, "values": values, "last": last}
        row |= {"advantages": advantages, "returns": returns}
        rows.append(json.dumps(plain(row) | {"ends": ends.tolist(), "how": HOW}, sort_keys=True))
    OUT.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()

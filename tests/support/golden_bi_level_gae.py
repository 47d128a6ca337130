"""Writes tests/golden/bi-level-gae.jsonl: what VAGEN's released estimator makes of episodes of several turns.

    git clone https://github.com/JamesKrW/verl && git -C verl checkout 3f55021   # the verl that VAGEN installs
    python tests/support/golden_bi_level_gae.py verl

`compute_bi_level_gae_advantage_return` of `verl/trainer/ppo/core_algos.py` as it is, on random episodes whose turns are paid at
their end and have observations between them. Its whitening, which divides by n - 1 tokens, is left out.
"""

from __future__ import annotations

import ast
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

OUT = Path(__file__).parents[1] / "golden" / "bi-level-gae.jsonl"
COMMIT = "3f55021"
NAME = "compute_bi_level_gae_advantage_return"


def published(folder: Path) -> Any:
    """The released function alone, as its module imports the whole trainer."""
    tree = ast.parse((folder / "verl" / "trainer" / "ppo" / "core_algos.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == NAME]
    made: dict[str, Any] = {"torch": torch, "verl_F": SimpleNamespace(masked_whiten=lambda values, mask: values)}
    exec(compile(tree, NAME, "exec"), made)
    return made[NAME]


def row(estimator: Any, chance: random.Random) -> dict[str, Any]:
    sizes = [[chance.randint(1, 4) for _ in range(chance.randint(1, 4))] for _ in range(chance.randint(1, 5))]
    rewards = [[round(chance.gauss(0, 1), 2) for _ in turns] for turns in sizes]
    values = [[round(chance.gauss(0, 1), 2) for _ in range(sum(turns))] for turns in sizes]
    how = {
        "gamma": chance.choice([1.0, 0.9]),
        "turn_gamma": chance.choice([1.0, 0.95, 0.5]),
        "lam": chance.choice([1.0, 0.8, 0.0]),
    }
    width = max(sum(turns) + 2 * len(turns) for turns in sizes)
    paid, end, valued, said = (torch.zeros(len(sizes), width) for _ in range(4))
    for n, turns in enumerate(sizes):
        at = told = 0
        for size, reward in zip(turns, rewards[n], strict=True):
            said[n, at : at + size] = 1
            valued[n, at : at + size] = torch.tensor(values[n][told : told + size])
            at, told = at + size, told + size
            paid[n, at - 1], end[n, at - 1] = reward, 1
            valued[n, at : at + 2] = 9.0  # an observation of two tokens, which no one asks
            at += 2
    found = estimator(paid, end, valued, said, how["gamma"], how["lam"], how["turn_gamma"])
    advantages, returns = ([[round(x, 5) for x in r[m > 0].tolist()] for r, m in zip(f, said, strict=True)] for f in found)
    told_by = f"ran JamesKrW/verl @{COMMIT}: verl/trainer/ppo/core_algos.py, {NAME}"
    return {
        "sizes": sizes,
        "rewards": rewards,
        "values": values,
        "advantages": advantages,
        "returns": returns,
        **how,
        "how": told_by,
    }


def main() -> None:
    estimator, chance = published(Path(sys.argv[1])), random.Random(0)
    OUT.write_text("".join(json.dumps(row(estimator, chance)) + "\n" for _ in range(30)))


if __name__ == "__main__":
    main()

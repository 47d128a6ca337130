"""Writes tests/golden/gigpo.jsonl: what GiGPO's released code makes of episodes of several turns.

    git clone https://github.com/langfengQ/verl-agent && git -C verl-agent checkout d0b9724
    python tests/support/golden_gigpo.py verl-agent

`gigpo/core_gigpo.py` as it is, on random episodes whose states are met again, with both norms, several weights, both ways of
counting an episode, and similar states.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

OUT = Path(__file__).parents[1] / "golden" / "gigpo.jsonl"
COMMIT = "d0b9724"
PLACES = ("You are in the kitchen. You see a cup.", "You are in the kitchen. You see a cap.", "You are in the hall.", "A door.")
"""The first two are 0.97 alike."""


def published(folder: Path) -> Any:
    """The released module; of verl it only names a type."""
    sys.modules["verl"] = ModuleType("verl")
    sys.modules["verl"].DataProto = object  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("core_gigpo", folder / "gigpo" / "core_gigpo.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(gigpo: Any, chance: random.Random, similarity: float) -> dict[str, Any]:
    """Episodes of two groups, each turn a line of the released code's batch. A group has several episodes, as that code gives a
    single one its plain reward; rewards are multiples of a quarter, so that its float32 finds equal returns equal."""
    episodes = [
        {
            "group": "ab"[n % 2],
            "states": [chance.choice(PLACES) for _ in range(count)],
            "rewards": [chance.choice([0.0, 0.0, chance.randint(-4, 4) / 4]) for _ in range(count)],
        }
        for n, count in enumerate(chance.randint(1, 6) for _ in range(chance.randint(4, 9)))
    ]
    how = {"step_weight": chance.choice([0.0, 0.5, 1.0, 2.0]), "gamma": chance.choice([0.5, 1.0]), "similarity": similarity}
    how |= {"scale": chance.choice(["none", "group"]), "over": chance.choice(["episodes", "turns"])}
    lines = [(n, e["group"], *turn) for n, e in enumerate(episodes) for turn in zip(e["states"], e["rewards"], strict=True)]
    number, group, states, rewards = (np.array(column, dtype=object) for column in zip(*lines, strict=True))
    data = SimpleNamespace(
        non_tensor_batch={"rewards": rewards, "traj_uid": number, "active_masks": np.ones(len(lines))},
        batch={"input_ids": torch.zeros(1)},
    )
    returns = gigpo.compute_step_discounted_returns(data, how["gamma"])
    whole = torch.tensor([[sum(episodes[n]["rewards"])] for n in number], dtype=torch.float32)
    mask = torch.ones_like(whole)
    defaults = gigpo.episode_norm_reward.__defaults__
    gigpo.episode_norm_reward.__defaults__ = (*defaults[:-1], how["over"] == "turns")
    given = {"step_advantage_w": how["step_weight"], "mode": "mean_norm" if how["scale"] == "none" else "mean_std_norm"}
    with contextlib.redirect_stdout(io.StringIO()):
        found, _ = gigpo.compute_gigpo_outcome_advantage(
            *(whole, returns, mask, states, group, number),
            **given,
            enable_similarity=similarity < 1,
            similarity_thresh=similarity,
        )
    gigpo.episode_norm_reward.__defaults__ = defaults
    advantages = [[round(float(x), 6) for x in found[number == n, 0]] for n in range(len(episodes))]
    how["how"] = f"ran langfengQ/verl-agent @{COMMIT}: gigpo/core_gigpo.py, compute_gigpo_outcome_advantage"
    return {"episodes": episodes, "advantages": advantages, **how}


def main() -> None:
    gigpo, chance = published(Path(sys.argv[1])), random.Random(0)
    rows = [row(gigpo, chance, similarity) for similarity in (1.0, 0.95) for _ in range(20)]
    OUT.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

"""Writes tests/golden/vlm-rl.jsonl: what VLM-RL's released code pays for embeddings, speeds and ways of driving.

    git clone https://github.com/zihaosheng/VLM-RL && git -C VLM-RL checkout 48dbb27
    python tests/support/golden_vlm_rl.py VLM-RL

`CLIPReward.forward_vlm_rl`, `compute_rewards` and `CLIPRewardedSAC._compute_clip_rewards` as they are, on embeddings in place of
pictures; and `reward_fn5` as `create_reward_fn` makes it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

OUT = Path(__file__).parents[1] / "golden" / "vlm-rl.jsonl"
COMMIT = "48dbb27"
PARAMETERS: Mapping[str, Any] = {  # `reward_fn_5_default` of config.py
    **{"early_stop": True, "min_speed": 20.0, "max_speed": 35.0, "target_speed": 25.0, "max_distance": 3.0},
    **{"max_std_center_lane": 0.4, "max_angle_center_lane": 90, "penalty_reward": -10},
}
WIDTH = 6


def functions(path: Path, *names: str, **known: Any) -> dict[str, Any]:
    """These functions and methods of a file, without its imports and its classes."""
    chosen = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in chosen:
        node.returns, node.decorator_list = None, []
        for argument in node.args.args:
            argument.annotation = None
    space = {"torch": torch, "np": np, "reward_functions": {}, **known}
    exec(compile(ast.fix_missing_locations(ast.Module(chosen, [])), str(path), "exec"), space)
    return space


class Embedded(torch.nn.Module):
    """In place of CLIP and of a picture: the right half of a row of numbers is the embedding."""

    def __init__(self, forward: Any, targets_2D: torch.Tensor) -> None:
        super().__init__()
        self.nothing, self.targets, self.paid = torch.nn.Parameter(torch.zeros(1)), targets_2D, forward

    def clip_embed_module(self, frames: torch.Tensor) -> torch.Tensor:
        return frames.flatten(1)

    def forward(self, x: torch.Tensor, vlm_reward_type: str) -> torch.Tensor:
        assert vlm_reward_type == "VLM-RL"
        return self.paid(self, x)


def driving(folder: Path, rng: random.Random) -> dict[str, Any]:
    """A row: pictures' embeddings, how the car drove, and the final rewards."""
    clip = functions(folder / "clip" / "clip_reward_model.py", "forward_vlm_rl", "compute_rewards")
    config = SimpleNamespace(reward_params=SimpleNamespace(**PARAMETERS))
    sac = functions(
        folder / "clip" / "clip_rewarded_sac.py", "_compute_clip_rewards", CONFIG=config, compute_rewards=clip["compute_rewards"]
    )
    count = rng.randint(2, 6)
    noise = torch.Generator().manual_seed(rng.randrange(10**6))
    targets = torch.nn.functional.normalize(torch.randn(2, WIDTH, generator=noise), dim=1)
    targets[1] = torch.nn.functional.normalize(targets[0] + 0.03 * torch.randn(WIDTH, generator=noise), dim=0)
    embeddings = torch.randn(count, WIDTH, generator=noise).round(decimals=3)
    frames = torch.cat([torch.zeros(count, 1, 1, WIDTH), embeddings[:, None, None]], 2).numpy()
    driven = {
        "base_rewards": [rng.choice([0.25, 0.75, -10.0]) for _ in range(count)],
        "speeds": [round(rng.uniform(0, 35), 2) for _ in range(count)],
        "centering_factors": [round(rng.random(), 3) for _ in range(count)],
        "angle_factors": [round(rng.random(), 3) for _ in range(count)],
        "distance_std_factors": [round(rng.random(), 3) for _ in range(count)],
    }
    memory = SimpleNamespace(
        **driven, render_arrays=list(frames), pos=count, rewards=np.zeros((count, 1)), clear_render_arrays=lambda: None
    )
    run = SimpleNamespace(
        env=SimpleNamespace(num_envs=1),
        replay_buffer=memory,
        num_timesteps=count,
        previous_num_timesteps=0,
        reward_model=Embedded(clip["forward_vlm_rl"], targets),
        config=SimpleNamespace(clip_reward_params=SimpleNamespace(batch_size=64), vlm_reward_type="VLM-RL"),
        inference_only=False,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        sac["_compute_clip_rewards"](run)
    told = {"avoid": targets[0].tolist(), "goal": targets[1].tolist(), "embeddings": embeddings.tolist(), **driven}
    return {"of": "driving", **told, "target_speed": PARAMETERS["target_speed"], "rewards": memory.rewards[:, 0].tolist()}


def own(folder: Path, rng: random.Random) -> dict[str, Any]:
    """A row: a state of the car, and what is paid without a model."""
    made = functions(folder / "carla_env" / "rewards.py", "create_reward_fn", "reward_fn5", **PARAMETERS)
    history = [round(abs(rng.gauss(0.5, rng.choice([0.05, 0.3]))), 3) for _ in range(rng.randint(1, 30))]
    angle, speed, ended = round(rng.uniform(-1.8, 1.8), 3), round(rng.uniform(0, 34.9), 2), rng.random() < 0.1
    car = SimpleNamespace(get_angle=lambda _: angle, get_speed=lambda: speed)
    told = {"distance_from_center": history[-1], "distance_from_center_history": history}
    nothing = {"current_waypoint": None, "eval": False, "fps": 15, "low_speed_timer": 0.0, "episode_idx": 0, "extra_info": []}
    env = SimpleNamespace(vehicle=car, terminal_state=ended, success_state=False, **told, **nothing)
    with contextlib.redirect_stdout(io.StringIO()):
        reward = made["create_reward_fn"](made["reward_fn5"])(env)
    return {"of": "own", "angle": angle, "speed": speed, "ended": ended, "history": history, "reward": float(reward)}


def main() -> None:
    folder, rng = Path(sys.argv[1]), random.Random(0)
    rows = [driving(folder, rng) for _ in range(40)] + [own(folder, rng) for _ in range(60)]
    OUT.write_text("".join(json.dumps(row | {"how": f"VLM-RL @{COMMIT}"}) + "\n" for row in rows))


if __name__ == "__main__":
    main()

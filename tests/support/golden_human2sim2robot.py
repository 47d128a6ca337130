"""Writes tests/golden/human2sim2robot.jsonl: what Human2Sim2Robot's released code pays for poses of an object.

    git clone https://github.com/tylerlum/human2sim2robot && git -C human2sim2robot checkout c468b75
    python tests/support/golden_human2sim2robot.py human2sim2robot

`compute_keypoint_positions`, the mean distance of `object_goal_distance`, and the part `Object Tracking Reward` of
`compute_reward_jit`, whose weight is 1 where the reference is tracked and those of all others 0.
"""

from __future__ import annotations

import ast
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

OUT = Path(__file__).parents[1] / "golden" / "human2sim2robot.jsonl"
COMMIT = "c468b75"


def functions(path: Path, *names: str, **known: Any) -> dict[str, Any]:
    """These functions of a file, without its imports, decorators and annotations."""
    chosen = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in chosen:
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
    space = {"torch": torch, **known}
    exec(compile(ast.fix_missing_locations(ast.Module(chosen, [])), str(path), "exec"), space)
    return space


def upright(yaw: torch.Tensor) -> torch.Tensor:
    """Quaternions x, y, z, w of turns about the upright axis."""
    zero = torch.zeros_like(yaw)
    return torch.stack([zero, zero, (yaw / 2).sin(), (yaw / 2).cos()], 1)


def main() -> None:
    folder = Path(sys.argv[1]) / "human2sim2robot" / "sim_training"
    constants: dict[str, Any] = {}
    exec((folder / "utils" / "cross_embodiment" / "object_constants.py").read_text(), constants)
    offsets, known = (
        torch.tensor(constants["OBJECT_KEYPOINT_OFFSETS"]),
        {"NUM_XYZ": 3, "NUM_QUAT": 4, "assert_equals": lambda *_: None},
    )
    turned = functions(folder / "utils" / "torch_utils.py", "quat_rotate")["quat_rotate"]
    placed = functions(
        folder / "utils" / "cross_embodiment" / "utils.py", "compute_keypoint_positions", quat_rotate=turned, **known
    )
    paid = functions(folder / "tasks" / "cross_embodiment" / "env.py", "compute_reward_jit")["compute_reward_jit"]
    noise, n = torch.Generator().manual_seed(0), 60
    pose = (torch.rand(n, 4, generator=noise) - 0.5) * torch.tensor([0.6, 0.6, 0.3, 2 * math.pi])
    goal = pose + (torch.rand(n, 4, generator=noise) - 0.5) * torch.tensor([0.3, 0.3, 0.2, 1.5]) * torch.rand(
        n, 1, generator=noise
    )
    distance = 0.5 * torch.rand(n, generator=noise)
    pose, goal, distance = (x.round(decimals=4) for x in (pose, goal, distance))
    repeated = offsets[None].repeat(n, 1, 1)
    points = [placed["compute_keypoint_positions"](x[:, :3], upright(x[:, 3]), repeated) for x in (pose, goal)]
    error = (points[0] - points[1]).norm(dim=-1).mean(dim=-1)
    far, flags = error > 0.2, torch.zeros(n, dtype=torch.bool)
    empty, actions = torch.zeros(n), torch.zeros(n, 2)
    rewards = paid(
        empty,
        flags,
        flags,
        empty,
        empty,
        empty,
        distance,
        empty,
        error,
        distance < 0.3,
        flags,
        flags,
        100,
        empty,
        actions,
        actions,
        far,
    )["Object Tracking Reward"]
    columns = {"pose": pose, "goal": goal, "distance": distance, "error": error, "reward": rewards}
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    how = {"how": f"Human2Sim2Robot @{COMMIT}"}
    OUT.write_text("".join(json.dumps(dict(zip(columns, row, strict=True)) | how) + "\n" for row in rows))


if __name__ == "__main__":
    main()

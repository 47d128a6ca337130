"""Writes tests/golden/rl-vlm-f.jsonl, what RL-VLM-F's released code makes of pairs of pictures, and rl-vlm-f-novelty.jsonl,
what it pays while it explores.

    git clone https://github.com/yufeiwang63/RL-VLM-F && git -C RL-VLM-F checkout febe2f2
    python tests/support/golden_rl_vlm_f.py RL-VLM-F

`gen_image_net`'s network, `RewardModel.train_reward` and `r_hat_batch` as they are, on a CPU, with first weights and orders of
pairs that `weights` and `pairs` below make again; and `compute_state_entropy` of agent/sac.py.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

OUT = Path(__file__).parents[1] / "golden" / "rl-vlm-f.jsonl"
COMMIT, SIDE, MEMBERS, EPOCHS = "febe2f2", 56, 2, 3


def weights(shapes: list[torch.Size], seed: int) -> list[torch.Tensor]:
    """First weights of a member, in the order of its parameters."""
    generator = torch.Generator().manual_seed(seed)
    return [0.3 * (torch.rand(shape, generator=generator) - 0.5) for shape in shapes]


def pairs(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two times uint8 [P, H, W, 3], and labels: which of them is redder."""
    generator = torch.Generator().manual_seed(seed)
    sides = [torch.randint(0, 256, (count, SIDE, SIDE, 3), generator=generator, dtype=torch.uint8) for _ in range(2)]
    for side in sides:
        side[..., 0] = side[..., 0] // 2 + torch.randint(0, 128, (count, 1, 1), generator=generator, dtype=torch.uint8)
    first, second = (side[..., 0].float().mean((1, 2)) for side in sides)
    return sides[0], sides[1], (second > first).long()


def orders(count: int, seed: int) -> list[list[torch.Tensor]]:
    """The orders of the pairs, epoch by epoch and member by member."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randperm(count, generator=generator) for _ in range(MEMBERS)] for _ in range(EPOCHS)]


def methods(path: Path, *names: str, **known: Any) -> dict[str, Any]:
    """These functions and methods of a file, without its imports and its classes."""
    chosen = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef) and node.name in names]
    space = {"torch": torch, "np": np, **known}
    exec(compile(ast.Module(chosen, []), str(path), "exec"), space)
    return space


def main() -> None:
    folder = Path(sys.argv[1])
    spec = importlib.util.spec_from_file_location("conv_net", folder / "conv_net.py")
    assert spec and spec.loader
    network = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(network)
    names = ("gen_image_net", "train_reward", "r_hat_member", "r_hat_batch")
    found = methods(folder / "reward_model.py", *names, CNN=network.CNN, fanin_init=network.fanin_init, device="cpu")
    rows = []
    for seed, count, batch in ((1, 12, 5), (2, 7, 7), (3, 9, 128)):
        ensemble = [found["gen_image_net"](SIDE, SIDE) for _ in range(MEMBERS)]
        for number, member in enumerate(ensemble):
            own = [p for name, p in member.named_parameters() if "norm" not in name]
            for parameter, first in zip(own, weights([p.shape for p in own], 10 * seed + number), strict=True):
                parameter.data.copy_(first)
        first, second, labels = pairs(count, seed)
        model = SimpleNamespace(
            **{"train_times": 0, "de": MEMBERS, "capacity": count, "buffer_full": True, "train_batch_size": batch},
            **{
                "buffer_seg1": first[:, None].numpy(),
                "buffer_seg2": second[:, None].numpy(),
                "buffer_label": labels[:, None].numpy(),
            },
            **{"image_reward": True, "ensemble": ensemble, "CEloss": torch.nn.CrossEntropyLoss()},
            opt=torch.optim.Adam([p for member in ensemble for p in member.parameters()], lr=3e-4),
        )
        model.r_hat_member = lambda x, member=-1, model=model: found["r_hat_member"](model, x, member)
        accuracies = []
        for epoch in orders(count, seed):
            drawn = iter([order.numpy() for order in epoch])
            real, np.random.permutation = np.random.permutation, lambda _, drawn=drawn: next(drawn)
            try:
                accuracies.append(float(np.mean(found["train_reward"](model))))
            finally:
                np.random.permutation = real
        pictures = first.permute(0, 3, 1, 2).float().numpy() / 255
        rewards = found["r_hat_batch"](model, pictures)[:, 0].tolist()
        rows.append({"seed": seed, "count": count, "batch": batch, "accuracies": accuracies, "rewards": rewards})
    OUT.write_text("".join(json.dumps(row | {"how": f"RL-VLM-F @{COMMIT}"}) + "\n" for row in rows))
    entropy = methods(folder / "agent" / "sac.py", "compute_state_entropy")["compute_state_entropy"]
    generator, rows = torch.Generator().manual_seed(4), []
    for count, others, neighbour in ((3, 12, 5), (5, 700, 5), (4, 9, 2)):
        states = torch.randn(others, 3, generator=generator).round(decimals=3)
        row = {"states": states[:count].tolist(), "others": states.tolist(), "neighbour": neighbour}
        row["novelty"] = entropy(states[:count], states, k=neighbour)[:, 0].tolist()
        rows.append(json.dumps(row | {"how": f"ran RL-VLM-F @{COMMIT}: agent/sac.py, compute_state_entropy"}))
    OUT.with_name("rl-vlm-f-novelty.jsonl").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()

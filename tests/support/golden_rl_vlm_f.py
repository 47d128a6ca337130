"""Writes tests/golden/rl-vlm-f.jsonl, what RL-VLM-F's released code makes of pairs of pictures, rl-vlm-f-novelty.jsonl,
what it pays while it explores, and rl-vlm-f-labels.jsonl, how it reads a model's answers about a pair.

    git clone https://github.com/yufeiwang63/RL-VLM-F && git -C RL-VLM-F checkout febe2f2
    python tests/support/golden_rl_vlm_f.py RL-VLM-F

`gen_image_net`'s network, `RewardModel.train_reward` and `r_hat_batch` as they are, on a CPU, with first weights and orders of
pairs that `weights` and `pairs` below make again; `compute_state_entropy` of agent/sac.py; and `gemini_query_2` of
vlms/gemini_infer.py with the lines of `RewardModel.get_label` for `gemini_free_form`, between two models that answer from a list.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

OUT = Path(__file__).parents[1] / "golden" / "rl-vlm-f.jsonl"
COMMIT, SIDE, MEMBERS, EPOCHS = "febe2f2", 56, 2, 3
SUMMARIES = (
    *("0", "1", "-1", " 1 ", "+1", "01", "-0", "1\n0", "0\nsince picture 1 is nearer", "-1\n1", "1\r\n", "\t0"),
    *("2", "-2", "10", "1.", "1.0", "0.", "Image 1", "Better: 1", "**1**", "", "\n1", "\n", "one", "0 or 1", "unsure", "- 1"),
)
"""Replies to the second question."""


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
    how = f"ran RL-VLM-F @{COMMIT}: vlms/gemini_infer.py, gemini_query_2; reward_model.py, get_label"
    rows = [
        json.dumps({"summary": said, "label": label, "how": how}) for said, label in zip(SUMMARIES, read(folder), strict=True)
    ]
    OUT.with_name("rl-vlm-f-labels.jsonl").write_text("\n".join(rows) + "\n")


def read(folder: Path) -> list[int]:
    """The label of each of `SUMMARIES`."""

    def model(replies: list[str]) -> Any:
        left = iter(replies)
        answer = lambda *_, **__: SimpleNamespace(text=next(left), resolve=lambda: None)  # noqa: E731
        return SimpleNamespace(generate_content=answer)

    settings = SimpleNamespace(types=SimpleNamespace(GenerationConfig=dict))
    known = {"genai": settings, "time": time, "print": lambda *_: None}
    known |= {"model": model(["a description"] * len(SUMMARIES)), "text_model": model(list(SUMMARIES))}
    query = methods(folder / "vlms" / "gemini_infer.py", "gemini_query_2", **known)["gemini_query_2"]
    branches = [node for node in ast.walk(ast.parse((folder / "reward_model.py").read_text())) if isinstance(node, ast.If)]
    (branch,) = [node for node in branches if ast.unparse(node.test) == "self.vlm == 'gemini_free_form'"]
    space: dict[str, Any] = {"self": SimpleNamespace(env_name="e"), "Image": SimpleNamespace(fromarray=lambda x: x)}
    space |= {"img_t_1": SUMMARIES, "img_t_2": SUMMARIES, "gemini_query_2": query, "gemini_summary_env_prompts": {"e": "{}"}}
    space |= {"gemini_free_query_prompt1": "", "gemini_free_query_prompt2": "", "gemini_free_query_env_prompts": {"e": ""}}
    exec(compile(ast.Module(branch.body, []), "reward_model.py", "exec"), space)
    return list(space["vlm_labels"])


if __name__ == "__main__":
    main()

"""Writes tests/golden/turn-critics.jsonl: what ArCHer's and DigiRL's released code makes of values, rewards and answers.

    git clone https://github.com/YifeiZhou02/ArCHer && git -C ArCHer checkout 7c771a7
    git clone https://github.com/DigiRL-agent/digirl && git -C digirl checkout c74ec34
    python tests/support/golden_turn_critics.py ArCHer digirl

Their trainers as they are, with agents whose critics look numbers up in a table: losses and gradients of the critics, the weight
of each answer's log-probability, the chosen episodes, and the targets that follow.
"""

from __future__ import annotations

import ast
import copy
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

OUT = Path(__file__).parents[1] / "golden" / "turn-critics.jsonl"
ARCHER, DIGIRL = "7c771a7", "c74ec34"


def bare(path: Path, *names: str, **known: Any) -> dict[str, Any]:
    """These classes and functions of a file, without its imports."""
    tree = ast.parse(path.read_text())
    chosen = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name in names]
    space = {"torch": torch, "np": np, "copy": copy, "random": random, "tqdm": lambda x, **_: x, "Tuple": tuple, **known}
    exec(compile(ast.Module(chosen, []), str(path), "exec"), space)
    return space


class Table(torch.nn.Module):
    """A number for each turn, and in an actor's for each pair of turn and answer."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(values)


ACCELERATOR = SimpleNamespace(
    unwrap_model=lambda model: SimpleNamespace(device="cpu", dtype=torch.float32),
    backward=lambda loss: loss.backward(),
    prepare=lambda *x: x if len(x) > 1 else x[0],
    clip_grad_norm_=lambda *_: None,
    is_main_process=False,
)


class Turns(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, n: int) -> Any:
        return self.data[n]


def archer(folder: Path, noise: torch.Generator) -> dict[str, Any]:
    """One row: n turns, each with its own numbers."""
    known = {"DataLoader": torch.utils.data.DataLoader, "DummyDataset": Turns, "transformers": None, "print": lambda *_: None}
    trainers = bare(folder / "archer/algorithms/archer/trainer.py", "ArcherTrainer", "dict_mean", **known)
    agents = bare(folder / "archer/models/archer_agent.py", "ArcherAgent")
    n = int(torch.randint(3, 9, (), generator=noise))
    numbers = torch.randn(6, n, generator=noise).round(decimals=3)  # q1, q2, v1, v2 of turns; v1, v2 of what follows
    others = torch.randn(4, n, generator=noise).round(decimals=3)  # the targets' q1, q2 of the policy's answers; v1, v2 after
    rewards, done = torch.randn(n, generator=noise).round(decimals=3), torch.rand(n, generator=noise) < 0.4

    class Critic(Table):
        def forward(self, seen: Any, said: Any, detach_model: bool = False) -> tuple[torch.Tensor, ...]:
            at = torch.tensor([int(x) for x in seen])
            return tuple(self.values[k][at] for k in range(4))

    class Target(Table):
        def forward(self, seen: Any, said: Any, detach_model: bool = False) -> tuple[torch.Tensor, ...]:
            at = torch.tensor([int(x) for x in seen])
            return tuple(self.values[k][at] for k in range(4))

    agent = SimpleNamespace(
        critic=Critic(numbers[:4].clone()),
        target_critic=Target(others.clone()),
        model=Table(torch.zeros(n)),
        parameters=lambda: [],
        policy_lm="",
        get_action=lambda seen: seen,
        soft_update_target_critic=lambda tau: None,
    )
    agent.get_log_prob = lambda seen, said: agent.model.values[torch.tensor([int(x) for x in seen])]
    gamma = 0.95
    trainer = trainers["ArcherTrainer"](
        agent, ACCELERATOR, None, gamma=gamma, grad_accum_steps=1, epochs=1, actor_epochs=1, tau=0.1
    )
    still = SimpleNamespace(zero_grad=lambda: None, step=lambda: None)
    trainer.critic_optimizer = trainer.lm_optimizer = still
    places = iter(list(range(n)) * 2)

    def sample(_: int) -> dict[str, Any]:
        k = next(places)
        row = {"observation": k, "next_observation": k, "action": k, "reward": rewards[k], "done": done[k], "mc_return": 0.0}
        return {name: [float(x)] if isinstance(x, torch.Tensor) else [x] for name, x in row.items()}

    found = trainer.update(SimpleNamespace(sample=sample, batch_size=n))
    row = {
        "system": "archer",
        "answers": numbers[:2].tolist(),
        "values": numbers[2:4].tolist(),
        "target_answers": others[:2].tolist(),
        "next_values": others[2:].tolist(),
        "rewards": rewards.tolist(),
        "done": done.tolist(),
        "gamma": gamma,
        "loss": sum(float(found[f"{name}.loss"]) for name in ("q1", "q2", "v1", "v2")),
        "gradient": agent.critic.values.grad.tolist(),
        "weights": (-n * agent.model.values.grad).tolist(),
    }
    follows = SimpleNamespace(critic=agent.critic, target_critic=agent.target_critic)
    agents["ArcherAgent"].soft_update_target_critic(follows, tau=0.1)
    return row | {"followed": agent.target_critic.values.tolist()}


def baseline(folder: Path, noise: torch.Generator) -> dict[str, Any]:
    """One row: n answers of at most T tokens, whose advantages a value of each token foresees."""
    trainers = bare(folder / "archer/algorithms/archer/trainer.py", "ArcherTrainer")
    n, longest = int(torch.randint(2, 6, (), generator=noise)), int(torch.randint(2, 7, (), generator=noise))
    lengths = torch.randint(1, longest + 1, (n,), generator=noise)
    lengths[0] = longest
    mask = (torch.arange(longest) < lengths[:, None]).float()
    values = torch.randn(n, longest, 1, generator=noise).round(decimals=3).requires_grad_()
    logprobs = torch.zeros(n, longest, requires_grad=True)
    advantages = torch.randn(n, generator=noise).round(decimals=3)
    trainer = trainers["ArcherTrainer"].__new__(trainers["ArcherTrainer"])
    trainer.accelerator = ACCELERATOR
    trainer.agent = SimpleNamespace(model=None, get_log_prob=lambda *_: (values, logprobs, mask))
    trainer.actor_loss(None, None, advantages.tolist())
    assert values.grad is not None and logprobs.grad is not None
    return {
        "system": "archer-baseline",
        "values": values[..., 0].tolist(),
        "lengths": lengths.tolist(),
        "advantages": advantages.tolist(),
        "weights": (-n * logprobs.grad).tolist(),
        "pull": (n * longest / 2 * values.grad[..., 0]).tolist(),
    }


def digirl(folder: Path, noise: torch.Generator) -> dict[str, Any]:
    """One row: n turns, and m episodes."""
    trainers = bare(folder / "digirl/algorithms/digirl/trainer.py", "DigiRLTrainer")
    n, m = (int(torch.randint(3, 12, (), generator=noise)) for _ in range(2))
    before, after = (torch.randn(2, n, 2, generator=noise).round(decimals=3).requires_grad_() for _ in range(2))
    paid = (torch.rand(n, generator=noise) < 0.4).float() * 0.5
    logprobs = torch.zeros(n, 1, requires_grad=True)
    logits = torch.randn(m, 2, generator=noise).round(decimals=3).requires_grad_()
    agent = SimpleNamespace(
        critic=lambda seen, *_, **__: (before[0], before[1]) if seen == "before" else (after[0], after[1]),
        trajectory_critic=lambda seen, **_: logits[torch.tensor(seen)],
        get_log_prob=lambda *_: logprobs,
        model=None,
        device="cpu",
    )
    trainer = trainers["DigiRLTrainer"].__new__(trainers["DigiRLTrainer"])
    trainer.agent, trainer.accelerator = agent, ACCELERATOR
    trainer.criterion, trainer.softmax = torch.nn.CrossEntropyLoss(), torch.nn.Softmax(dim=-1)
    turns = {"observation": "before", "next_observation": "after", "image_features": torch.zeros(1), "action": None}
    turns |= {"next_image_features": None, "reward": np.zeros(n), "done": np.zeros(n), "mc_return": paid.numpy()}
    found = trainer.critic_loss(**turns)
    gradient = [x.grad.clone().tolist() for x in (before, after)]
    trainer.actor_loss(**turns, pi_action=None, advantage=None)
    rewards = (torch.rand(m, generator=noise) < 0.5).float()
    prompts = trainer.trajectory_critic_loss(list(range(m)), rewards.numpy())
    loops = bare(
        folder / "digirl/algorithms/offpolicy_train_loop.py",
        "filter_buffer",
        "label_trajectories",
        ReplayBuffer=Bought,
        print=lambda *_: None,
    )
    episodes = [[{"observation": k, "trajectory_reward": float(rewards[k])}] for k in range(m)]
    chosen = loops["filter_buffer"](episodes, 1, m, agent).places
    return {
        "system": "digirl",
        "before": before.tolist(),
        "after": after.tolist(),
        "paid": paid.tolist(),
        "loss": float(found["v1.loss"] + found["v2.loss"]),
        "gradient": gradient,
        "imitated": (-n * logprobs.grad[:, 0]).tolist(),
        "prompts": logits.tolist(),
        "rewards": rewards.tolist(),
        "prompt_loss": float(prompts["trajectory.v1.loss"]),
        "prompt_gradient": logits.grad.tolist(),
        "chosen": chosen,
    }


class Bought:
    """A buffer that keeps which episodes it was given."""

    def __init__(self, **_: Any) -> None:
        self.places: list[int] = []

    def insert(self, observation: int, **_: Any) -> None:
        self.places.append(observation)


def rounded(x: Any) -> Any:
    """Numbers with six decimals."""
    if isinstance(x, dict):
        return {name: rounded(value) for name, value in x.items()}
    return [rounded(value) for value in x] if isinstance(x, list) else round(x, 6) if isinstance(x, float) else x


def main() -> None:
    noise = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(16):
        how = f"ran YifeiZhou02/ArCHer @{ARCHER}: archer/algorithms/archer/trainer.py, update; archer_agent.py"
        rows.append(archer(Path(sys.argv[1]), noise) | {"how": how})
        how = f"ran DigiRL-agent/digirl @{DIGIRL}: digirl/algorithms/digirl/trainer.py, losses; filter_buffer"
        rows.append(digirl(Path(sys.argv[2]), noise) | {"how": how})
    noise = torch.Generator().manual_seed(1)
    how = f"ran YifeiZhou02/ArCHer @{ARCHER}: archer/algorithms/archer/trainer.py, actor_loss with values of tokens"
    rows += [baseline(Path(sys.argv[1]), noise) | {"how": how} for _ in range(8)]
    OUT.write_text("".join(json.dumps(rounded(row)) + "\n" for row in rows))


if __name__ == "__main__":
    main()

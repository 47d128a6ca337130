"""A small policy on a task of LIBERO, from a warm start: success from held-out initial states before and after RL, over seeds.

    python benchmarks/learn_libero.py --python PYTHON [--suite goal] [--task 7] [--seeds 0 1 2] [--steps 20] [--demos 2]
        [--side-by-side 2] [--curve FILE.svg]

PYTHON is an interpreter with LIBERO, such as the one of `make simulators`: .simulators/libero/bin/python. The task has fifty
published initial states. From the first 25 the expert shows `--demos` episodes, which a perceptron imitates. Then it is frozen,
and from the same states a second one learns a bounded correction of its actions off-policy (ResFiT). The only reward is
LIBERO's success. Both are evaluated, without chance, from the last 25, in which neither ever was.

The policy reads the state: the hand, and the places of what the goal names (option `objects`). It has no picture, because in
software two of 128 pixels take ten times as long as the physics, and half an hour on two cores isn't enough. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w
from mmrl_libero.suites import PANDA

import learning
from machine import machine

STATES = 50
SEEN, HELD_OUT = list(range(STATES // 2)), list(range(STATES // 2, STATES))
EPISODES = 8
"""Of a step of RL."""


def run_file(args: argparse.Namespace, runs: Path, name: str, seed: int, policy: dict[str, Any], stage: dict[str, Any]) -> str:
    """A run on the first half of the states that is evaluated on the second."""
    world = {"simulator": f"libero/{args.suite}", "task": args.task, "cameras": [], "rendering": "none", "objects": True}
    world |= {"python": args.python, "max_steps": args.max_steps, "starts": len(SEEN), "demos": args.demos}
    seen, held_out = {"initial_states": SEEN, "held_out": 1}, {"initial_states": HELD_OUT, "held_out": len(HELD_OUT)}
    data = {
        "name": name,
        "runs_dir": str(runs),
        "seed": seed,
        "policy": policy,
        "tasks": [
            {"id": "robotics/episodes", "name": "seen", "options": world | seen},
            {"id": "robotics/episodes", "name": "held-out", "weight": 0, "options": world | held_out},
        ],
        "stages": [stage],
        "simulate": {"num_envs": args.environments},
        "evaluate": {"num_prompts": 0 if stage["kind"] == "sft" else len(HELD_OUT), "every": args.every},
        "train": {"threads": 1},
        "record": {"rollouts_every": 0, "trackers": []},
    }
    return tomli_w.dumps(data)


def scales(runs: Path, things: int) -> Path:
    """Round numbers for what the state holds, in the form of LeRobot's stats.json: an action stays what it is, the hand is within
    decimetres of its start, and a distance counts as an action does, 5 cm for 1."""
    hand = {"mean": [-0.1, 0.0, 1.05, 3.1, 0.0, 0.0, 0.02, -0.02], "std": [0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.02, 0.02]}
    state = {"mean": hand["mean"] + [0.0] * 3 * things, "std": hand["std"] + [0.05] * 3 * things}
    file = runs / "stats.json"
    file.write_text(json.dumps({"action": {"mean": [0.0] * 7, "std": list(PANDA.units)}, "observation.state": state}))
    return file


def imitation(args: argparse.Namespace, runs: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the policy, the stage) of the warm start."""
    state = {"dims": 7, "state": 8 + 3 * args.things, "statistics": str(scales(runs, args.things)), "gripper": "close-positive"}
    options = state | {"hidden": [128, 128], "spread": 0.1}
    sizes = {"steps": args.imitation, "batch_size": 128, "learning_rate": 1e-3, "schedule": "linear"}
    return {"kind": "robotics/small", "model": "mlp", "options": options}, {"kind": "sft", "split": "demo", **sizes}


def reinforcement(args: argparse.Namespace, base: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the policy, the stage) of RL: small critics, updated 4 times for a step of the simulator, with the base's demonstrations
    in half of each batch. The correction's own noise explores, so the temperature begins near zero."""
    options = {"dims": 7, "base": str(base), "residual": args.residual, "hidden": [128, 128]}
    play = {"steps": args.steps, "prompts_per_step": EPISODES, "starts_after": 500, "gamma": 0.98, "n_step": 5}
    critics = {"updates": 4, "critics": 2, "hidden": [128, 128], "batch_size": 128, "start_temperature": 1e-3}
    rates = {"learning_rate": 1e-4, "critic_learning_rate": 3e-4}
    offline = {"offline": "expert", "offline_episodes": args.demos}
    return {"kind": "squashed", "model": "mlp", "options": options}, {"kind": "off-policy", **play, **critics, **rates, **offline}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter with LIBERO")
    parser.add_argument("--suite", default="goal")
    parser.add_argument("--task", type=int, default=7)
    parser.add_argument("--things", type=int, default=1, help="that the task's goal names")
    parser.add_argument("--max-steps", type=int, default=65, help="of an episode; the expert takes 55")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20, help=f"of RL, each with {EPISODES} episodes")
    parser.add_argument("--demos", type=int, default=2, help="episodes that the expert shows")
    parser.add_argument("--imitation", type=int, default=600, help="steps of imitation")
    parser.add_argument("--residual", type=float, default=0.15, help="largest correction of a number of an action")
    parser.add_argument("--every", type=int, default=5, help="evaluate after so many steps of RL, too")
    parser.add_argument("--environments", type=int, default=1)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--curve", type=Path, default=None, help="SVG file for the curve of held-out values")
    args = parser.parse_args()
    started, runs = time.perf_counter(), Path(tempfile.mkdtemp())
    warm = learning.train(runs, "warm", run_file(args, runs, "warm", 0, *imitation(args, runs)))
    base = learning.checkpoint(runs, "warm")

    def run(seed: int) -> learning.Run:
        name = f"seed-{seed}"
        return learning.train(runs, name, run_file(args, runs, name, seed, *reinforcement(args, base)))

    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(run, args.seeds))
    if args.curve:
        learning.draw(args.curve, "held-out", after)
    before = learning.Run(after[0].of("held-out")[:1], warm.wall_s)
    found = {
        "benchmark": "learn_libero",
        **learning.figures("held-out", before, after),
        "episodes": args.steps * EPISODES,
        "wall_s": round(time.perf_counter() - started, 1),
        "runs": str(runs),
        "settings": vars(args) | {"curve": str(args.curve)},
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

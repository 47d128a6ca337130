"""Rotation and jigsaws of the digits, from a warm start: held-out accuracy before and after GRPO, over seeds.

    python benchmarks/learn_ssl.py --task rotation|jigsaw-2x1|jigsaw-2x2 [--seeds 0 1 2] [--side-by-side 2] [--curve FILE.svg]

scikit-learn's 1,797 digits are written to a folder as 56 x 56 pixels; 30% are held out by a hash of their names, and each has 4
questions. A tiny model with random weights is fine-tuned on right answers; GRPO starts from that checkpoint, once for each seed.
The questions are those of `ssl/rotation` and `jigsaw/full` in few words, as this model's tokenizer splits most other words into
letters. Each run is `mmrl train` in a separate process with one thread. Digits that look the same after a rotation (0, 8, 1, 6
and 9) keep even a perfect model below 1. The jigsaws are also evaluated on 3x1, which they never train on. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl_jigsaw.task import Full
from mmrl_ssl.task import Rotation

from mmrl import TaskSpec, hookimpl


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    """This file is also the plugin that the runs load."""
    placement = {"jigsaw/placement": 1.0}
    return [
        TaskSpec(id="learn_ssl/rotation", target="learn_ssl:ShortRotation", verifiers={"ssl/exact": 1.0}),
        TaskSpec(id="learn_ssl/jigsaw", target="learn_ssl:ShortFull", verifiers=placement, metric="jigsaw/exact"),
    ]


@dataclass(kw_only=True, eq=False)
class ShortRotation(Rotation):
    """`ssl/rotation` in few words."""

    def worded(self, question: str, what: str) -> str:
        return "What is shown in the photo? " + ", ".join(map(str, self.angles))


@dataclass(kw_only=True, eq=False)
class ShortFull(Full):
    """`jigsaw/full` in few words."""

    def pose(self, order: Any, size: Any, draw: Any) -> tuple[str, Any, dict[str, Any]]:
        _, answer, meta = super().pose(order, size, draw)
        return f"Please output the list of {size.rows} x {size.columns}.", answer, meta


@dataclass(frozen=True)
class Setting:
    """The settings of a task."""

    id: str
    options: str
    warm_optimizer: str
    warm_rate: float
    warm: int
    steps: int
    learning_rate: float
    entropy: float

    @property
    def warm_beta(self) -> float:
        return 0.95 if self.warm_optimizer == "muon" else 0.9


TRANSFER = "jigsaw-3x1"
SETTINGS = {
    "rotation": Setting("learn_ssl/rotation", "", "adamw", 1e-3, 70, 200, 4e-4, 0.02),
    "jigsaw-2x1": Setting("learn_ssl/jigsaw", ", rows = 2, columns = 1", "muon", 2e-3, 150, 300, 3e-4, 0.05),
    "jigsaw-2x2": Setting("learn_ssl/jigsaw", ", rows = 2, columns = 2", "muon", 2e-3, 200, 300, 4e-4, 0.02),
}
RUN_FILE = """\
name = "{name}"
runs_dir = "{runs}"
seed = {seed}
policy = {{ model = "{model}" }}
tasks = [{tasks}]
stages = [{stage}]
generate = {{ max_tokens = 6 }}
evaluate = {{ num_prompts = 500, every = 50 }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = 1 }}
"""
TASK = '{{ id = "{id}", name = "{name}", weight = {weight}, options = {{ path = "{digits}", size = 56, each = 4{options} }} }}'
WARM = (
    '{{ kind = "sft", steps = {0.warm}, batch_size = 64, optimizer = "{0.warm_optimizer}", beta1 = {0.warm_beta}, '
    "learning_rate = {0.warm_rate} }}"
)
RL = (
    '{{ kind = "rl", steps = {0.steps}, prompts_per_step = 32, group_size = 8, optimizer = "muon", beta1 = 0.95, '
    'learning_rate = {0.learning_rate}, schedule = "linear", entropy_coef = {0.entropy} }}'
)


def write_digits(folder: Path) -> None:
    """Writes the digits as files such as `0123.png`."""
    from PIL import Image
    from sklearn.datasets import load_digits

    folder.mkdir()
    for i, image in enumerate(load_digits().images):
        picture = Image.fromarray((image * 255 / 16).astype("uint8"))
        picture.resize((56, 56), Image.Resampling.NEAREST).save(folder / f"{i:04d}.png")


def run_file(runs: Path, task: str, name: str, seed: int, model: str, stage: str) -> str:
    """The text of a run file. After the warm start, jigsaws are also evaluated on 3x1 puzzles, without training on them."""
    setting, digits = SETTINGS[task], runs / "digits"
    tasks = [TASK.format(id=setting.id, name=task, weight=1, digits=digits, options=setting.options)]
    if task.startswith("jigsaw") and name != "warm":
        tasks.append(TASK.format(id=setting.id, name=TRANSFER, weight=0, digits=digits, options=", rows = 3, columns = 1"))
    return RUN_FILE.format(name=name, runs=runs, seed=seed, model=model, tasks=", ".join(tasks), stage=stage.format(setting))


def main() -> None:
    import learning
    from machine import machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(SETTINGS), required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--curve", type=Path, default=None, help="SVG file for the curve of held-out values")
    args = parser.parse_args()
    started, runs = time.perf_counter(), Path(tempfile.mkdtemp())
    write_digits(runs / "digits")

    def run(name: str, seed: int, model: str, stage: str) -> learning.Run:
        text = run_file(runs, args.task, name, seed, model, stage)
        return learning.train(runs, name, text, MMRL_PLUGIN_FILES=str(Path(__file__).resolve()))

    warm = run("warm", 0, "tiny:qwen2_5_vl", WARM)
    model = str(learning.checkpoint(runs, "warm"))
    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(lambda seed: run(f"seed-{seed}", seed, model, RL), args.seeds))
    if args.curve:
        learning.draw(args.curve, args.task, after)
    found = {
        "benchmark": "learn_ssl",
        "task": args.task,
        **vars(SETTINGS[args.task]),
        "side_by_side": args.side_by_side,
        **learning.figures(args.task, warm, after),
        "transfer": {TRANSFER: [round(run.last(TRANSFER)["value"], 4) for run in after if run.of(TRANSFER)]},
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""PA-RL against imitation, and RECAP under its texts, on the embedded table: held-out success.

    python benchmarks/improving.py [--seeds 0 1 2] [--only pa-rl|recap] [--prompts 128] [--runs FOLDER]

PA-RL (`configs/demo/robot-pa-rl.toml`) trains a small network on the hidden states of the model in `assets/models/tabletop-pick`,
with 200 episodes of the table's expert. It is compared with the same network that imitates the expert in as many updates of as
many calls: the same 200 episodes, or as many as PA-RL has of both, the expert's and its own. RECAP
(`configs/demo/robot-recap.toml`) trains that model itself, with 100 of the expert's episodes, and is compared with itself: told
that its actions will be good, bad, or nothing. Each run is `mmrl train` in a separate process with one thread. `--runs` keeps the
runs, and goes on with those that are there. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import tomli_w

from machine import machine
from off_policy import ROOT, trained

EVERY = 5
"""Steps of a stage between two evaluations."""
STEPS = 300
"""Steps of the simulator in a step of PA-RL, about: 32 episodes of at most 10."""


def run_file(runs: Path, kind: str, seed: int, prompts: int) -> str:
    """The text of a run file."""
    name = "robot-recap.toml" if kind == "recap" else "robot-pa-rl.toml"
    data = tomllib.loads((ROOT / "configs" / "demo" / name).read_text())
    (stage,) = data["stages"]
    if kind.startswith("imitation"):
        given, own = stage["offline_episodes"], stage["steps"] * stage["prompts_per_step"]
        data["tasks"][0]["options"]["demos"] = given + (own if kind == "imitation-of-more" else 0)
        how, learning = stage["improve"], stage["steps"] - stage["improve"]["warmup_steps"]
        updates = round(learning * STEPS * how["updates"])
        data["stages"] = [{"kind": "sft", "split": "demo", "steps": updates, "batch_size": 64, "learning_rate": 3e-4}]
        data["stages"][0]["max_grad_norm"] = float("inf")
    data |= {"name": f"{kind}-{seed}", "runs_dir": str(runs), "seed": seed, "train": {"threads": 1}}
    data |= {"evaluate": {"num_prompts": prompts, "every": EVERY}, "record": {"rollouts_every": 0, "trackers": []}}
    data["checkpoint"] = {"every": 10, "keep": 1}
    return tomli_w.dumps(data)


def finished(runs: Path, kind: str, seed: int, prompts: int) -> dict[str, Any]:
    """The success of a run at its evaluations, and the steps of the simulator that it took in training."""
    text = run_file(runs, kind, seed, prompts)
    trained(runs, kind, seed, text)
    rows = [json.loads(line) for line in (runs / f"{kind}-{seed}" / "metrics.jsonl").read_text().splitlines()]
    success = [round(row["eval"]["value"], 4) for row in rows if "eval" in row]
    steps = [row["metrics"].get("episode/steps", 0.0) for row in rows if "metrics" in row]
    (stage,) = tomllib.loads(text)["stages"]
    return {"success": success, "steps": round(sum(steps) * stage.get("prompts_per_step", 0))}


def told(folder: Path, prompts: int) -> dict[str, float]:
    """The success of a RECAP run's last policy under each text, on the same held-out starts."""
    from mmrl.config.load import load_config
    from mmrl.train.sampling.condition import with_condition
    from mmrl.train.start import evaluate_only

    config, found = load_config(folder / "config.toml"), {}
    (stage,) = config.stages
    for name, text in (("positive", stage.condition.positive), ("none", ""), ("negative", stage.condition.negative)):
        shown = lambda _, text=text: lambda prompt: with_condition(prompt, text)  # noqa: E731
        with mock.patch("mmrl.train.start.stage_condition", shown):
            (evaluation,) = evaluate_only(config, folder, "last")
        assert evaluation.n == prompts
        found[name] = round(evaluation.value, 4)
    return found


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", choices=("pa-rl", "recap"), default=None, help="one of the two comparisons")
    parser.add_argument("--prompts", type=int, default=128, help="held-out starts of an evaluation")
    parser.add_argument("--runs", type=Path, default=None)
    args = parser.parse_args()
    os.chdir(ROOT)
    started, runs = time.perf_counter(), (args.runs or Path(tempfile.mkdtemp())).resolve()
    runs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"benchmark": "improving", "n": args.prompts, "seeds": args.seeds}
    if args.only != "recap":
        kinds = ("pa-rl", "imitation", "imitation-of-more")
        both = {kind: [finished(runs, kind, seed, args.prompts) for seed in args.seeds] for kind in kinds}
        last = [{kind: rows[n]["success"][-1] for kind, rows in both.items()} for n in range(len(args.seeds))]
        found["pa-rl"] = both | {"last, median": medians(last)}
    if args.only != "pa-rl":
        rows = [finished(runs, "recap", seed, args.prompts) for seed in args.seeds]
        texts = [told(runs / f"recap-{seed}", args.prompts) for seed in args.seeds]
        found["recap"] = {"runs": rows, "texts": texts, "texts, median": medians(texts)}
    found |= {"wall_s": round(time.perf_counter() - started, 1), "machine": machine()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

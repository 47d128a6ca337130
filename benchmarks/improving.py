"""PA-RL against imitation, and RECAP under its texts, on the embedded table: held-out success at equal steps of the simulator.

    python benchmarks/improving.py [--seeds 0 1 2] [--only pa-rl|recap] [--prompts 128] [--steps N] [--runs FOLDER]

Everything begins with the model in `assets/models/tabletop-pick`, which sees well and acts badly. PA-RL
(`configs/demo/robot-pa-rl.toml`) is compared with imitation of the episodes that succeeded (the algorithm `filtered-cloning`),
which plays the same number of episodes of the same starts, and learns from them in about as many updates; neither sees an
expert. RECAP (`configs/demo/robot-recap.toml`) is one model, with a hundred episodes of the expert, which is told that its
actions will be good, bad, or nothing. Each run is `mmrl train` in a separate process with one thread. `--runs` keeps the runs, and goes on with
those that are there. Prints one JSON object.
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

import tomli_w

from machine import machine
from off_policy import ROOT, train

EVERY = 4
"""Steps of a stage between two evaluations."""


def run_file(runs: Path, kind: str, seed: int, steps: int | None, prompts: int) -> str:
    """The text of a run file."""
    name = "robot-recap.toml" if kind == "recap" else "robot-pa-rl.toml"
    data = tomllib.loads((ROOT / "configs" / "demo" / name).read_text())
    (stage,) = data["stages"]
    stage["steps"] = steps or stage["steps"]
    if kind == "imitation":
        kept = {key: stage[key] for key in ("steps", "prompts_per_step", "learning_rate")}
        # an update of PA-RL for ten steps of the simulator, of 64 calls each: about 30 of them in a step of the stage
        data["stages"] = [{"kind": "rl", "algorithm": "filtered-cloning", "group_size": 1, **kept, **SUCCESSES}]
    data |= {"name": f"{kind}-{seed}", "runs_dir": str(runs), "seed": seed, "train": {"threads": 1}}
    data |= {"evaluate": {"num_prompts": prompts, "every": EVERY}, "record": {"rollouts_every": 0, "trackers": []}}
    data["checkpoint"] = {"every": 10, "keep": 1}
    return tomli_w.dumps(data)


SUCCESSES = {"epochs": 5, "minibatches": 4, "ratio": "action", "success_threshold": 0.5}
"""20 updates in a step, about as many as PA-RL makes of about 300 steps of the simulator."""


def told(folder: Path, prompts: int) -> dict[str, float]:
    """The success of a RECAP run's last policy under each text, on the same held-out starts."""
    from mmrl.config.load import load_config
    from mmrl.train.start import evaluate_only

    config, found = load_config(folder / "config.toml"), {}
    (stage,) = config.stages
    for name, text in (("positive", stage.condition.positive), ("none", ""), ("negative", stage.condition.negative)):
        condition = stage.condition.model_copy(update={"positive": text})
        changed = config.model_copy(update={"stages": [stage.model_copy(update={"condition": condition})]})
        (evaluation,) = evaluate_only(changed, folder, "last")
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
    parser.add_argument("--steps", type=int, default=None, help="steps of the stages, by default the run files'")
    parser.add_argument("--runs", type=Path, default=None)
    args = parser.parse_args()
    os.chdir(ROOT)
    started, runs = time.perf_counter(), (args.runs or Path(tempfile.mkdtemp())).resolve()
    runs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"benchmark": "improving", "n": args.prompts, "seeds": args.seeds}

    def curves(kind: str) -> list[dict[str, Any]]:
        rows = []
        for seed in args.seeds:
            curve = train(runs, kind, seed, run_file(runs, kind, seed, args.steps, args.prompts), [])
            success = [round(evaluation["value"], 4) for _, evaluation in curve]
            rows.append({"steps": [round(steps) for steps, _ in curve], "success": success})
        return rows

    if args.only != "recap":
        both = {kind: curves(kind) for kind in ("pa-rl", "imitation")}
        last = [{kind: rows[n]["success"][-1] for kind, rows in both.items()} for n in range(len(args.seeds))]
        found["pa-rl against imitation"] = both | {"last, median": medians(last)}
    if args.only != "pa-rl":
        rows = curves("recap")
        texts = [told(runs / f"recap-{seed}", args.prompts) for seed in args.seeds]
        found["recap"] = {"runs": rows, "texts": texts, "texts, median": medians(texts)}
    found |= {"wall_s": round(time.perf_counter() - started, 1), "machine": machine()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

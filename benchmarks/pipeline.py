"""A simulated training pipeline on 1 to 1,024 GPUs: its throughput, and what limits it.

    python benchmarks/pipeline.py [--model 3b|7b|72b] [--scaling weak|strong] [--plot FILE.png]
    python benchmarks/pipeline.py --validate RUN_DIR ... [--calibrate OTHER_RUN_DIR ...]
    python benchmarks/pipeline.py --times FILE.json

`pipeline_model.py` simulates the events. Stage times are computed from data sheets and shapes (`pipeline_costs.py` lists what is
published, assumed, and measured on a CPU), or taken from `step_gpu.py`'s measurement on one GPU (`--times`) or from run folders
(`--calibrate`). `--validate` compares simulated steps of one process with those of runs with one setting: the second half of each
run with costs fitted to its first half, or all steps with costs fitted to the calibration runs. Prints one JSON object.

Weak scaling gives each GPU `--prompts` prompts, strong scaling divides `--prompts` x 64 among all. For each number of GPUs,
placement and staleness: tokens per second (prompt and completion of every rollout), efficiency relative to the smallest number of
GPUs that the model fits on (colocated), and the gain of throughput without each part (`losses`).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

import pipeline_costs as sources
from pipeline_faults import Faults, best_interval, endure
from pipeline_model import Costs, Job, Plan, colocated, hybrid, losses, separate, simulate

STEPS, SKIP = 8, 3
"""Simulated steps, and the first of them that are left out while the pipeline fills."""
COLOURS = {"colocated": "#0072B2", "separate": "#D55E00", "hybrid": "#009E73"}


def plans(placement: str, units: int, least: int = 1) -> list[Plan]:
    """The plans of a placement on `units` units; the fastest is used. least: least number of learning units."""
    if placement == "colocated":
        return [colocated(units)]
    splits = sorted({max(1, round(units * x)) for x in (0.25, 0.375, 0.5, 0.625, 0.75)} & set(range(1, units - least + 1)))
    if placement == "separate":
        return [separate(units, n) for n in splits]
    return [hybrid(units, n, share) for n in splits for share in (0.25, 0.5)]


def point(
    job: Job, costs: Costs, placement: str, gpus: int, staleness: int, explain: bool, smallest: int = 1
) -> dict[str, Any] | None:
    """The results of one setting; None if the placement needs more GPUs. smallest: least number of GPUs for learning."""
    speed = lambda plan, steps, skip: simulate(job, costs, plan, staleness, steps).tokens_per_second(skip)  # noqa: E731
    candidates = plans(placement, gpus // costs.tensor_parallel, max(1, smallest // costs.tensor_parallel))
    if not candidates:
        return None
    plan = candidates[0] if len(candidates) == 1 else max(candidates, key=lambda p: speed(p, 4, 2))
    played = simulate(job, costs, plan, staleness, STEPS)
    found = {
        "gpus": gpus,
        "placement": placement,
        "staleness": staleness,
        "step_s": round(played.step_seconds(SKIP), 2),
        "tokens_per_s": round(played.tokens_per_second(SKIP)),
        "tokens_per_s_per_gpu": round(played.tokens_per_second(SKIP) / gpus),
        "busy_share": round(played.busy, 3),
        "sampling_units": len(plan.samplers),
        "learning_units": len(plan.learners),
    }
    if explain:
        found["losses"] = {part: round(gain, 3) for part, gain in losses(job, costs, plan, staleness).items() if gain > 0.002}
        found["limit"] = next(iter(found["losses"]), "nothing")
        found["overhead"] = next((p for p in found["losses"] if p not in ("generate", "update")), "nothing")
    return found


def sweep(args: argparse.Namespace, job: Job, costs: Costs, smallest: int) -> list[dict[str, Any]]:
    rows = []
    for gpus in args.gpus:
        if gpus < max(smallest, costs.tensor_parallel):
            continue
        whole = replace(job, prompts=job.prompts * (gpus if args.scaling == "weak" else 64))
        for placement in args.placements:
            for staleness in args.staleness:
                row = point(whole, costs, placement, gpus, staleness, not args.quick, smallest)
                if row:
                    rows.append(row)
    base = next(r for r in rows if r["placement"] == args.placements[0])["tokens_per_s_per_gpu"]
    for row in rows:
        row["efficiency"] = round(row["tokens_per_s_per_gpu"] / base, 3)
    return rows


def lasting(rows: list[dict[str, Any]], faults: Faults) -> list[dict[str, Any]]:
    """The share of useful time with faults, colocated and synchronous."""
    found = []
    for row in rows:
        if row["placement"] == "colocated" and row["staleness"] == 0:
            every = max(1, round(best_interval(faults, row["gpus"]) / row["step_s"]))
            kept = endure(row["step_s"], row["gpus"], every, faults)
            found.append({"gpus": row["gpus"], "checkpoint_every": every} | {k: round(v, 4) for k, v in kept.items()})
    return found


def validated(folders: list[Path], others: list[Path]) -> dict[str, Any]:
    """Simulated steps against those of runs with one setting, by medians, as other programs slow some steps down."""
    if others:
        known, asked = [sources.read_run(other) for other in others], [sources.read_run(folder) for folder in folders]
    else:
        halves = {folder: len(sources.read_run(folder).lengths) // 2 for folder in folders}
        known = [sources.read_run(folder, last=half) for folder, half in halves.items()]
        asked = [sources.read_run(folder, first=half) for folder, half in halves.items()]
    costs = sources.calibrated(known)
    seconds = {k: np.concatenate([run.seconds[k] for run in asked]) for k in asked[0].seconds}
    measured = float(np.median(seconds["step"]))
    simulated = simulate(with_length(asked[0].job), costs, colocated(1), 0, 100).step_seconds()
    return {
        "runs": [str(folder) for folder in folders],
        "calibrated_on": [str(o) for o in others] or "their first halves",
        "steps": len(seconds["step"]),
        "measured_step_s": round(measured, 4),
        "measured_mean_s": round(float(seconds["step"].mean()), 4),
        "simulated_step_s": round(simulated, 4),
        "error": round(simulated / measured - 1, 4),
        "measured_parts_s": {k: round(float(np.median(v)), 4) for k, v in seconds.items() if k != "step"},
        "costs": asdict(costs),
    }


def with_length(job: Job) -> Job:
    """The same job, with the mean length before truncation chosen so that the mean after truncation is `job.length`."""
    low, high = job.length, 20 * job.length
    for _ in range(30):
        middle = (low + high) / 2
        mean = sum(float(replace(job, length=middle).lengths(s).mean()) for s in range(20)) / 20
        low, high = (middle, high) if mean < job.length else (low, middle)
    return replace(job, length=low)


def plot(rows: list[dict[str, Any]], title: str, file: str) -> None:
    """Plots tokens per second and efficiency over GPUs, with a line for each placement and staleness."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4))
    styles = {k: s for k, s in zip(sorted({r["staleness"] for r in rows}), ("-", "--", ":", "-."), strict=False)}
    for placement, k in sorted({(r["placement"], r["staleness"]) for r in rows}):
        own = [r for r in rows if (r["placement"], r["staleness"]) == (placement, k)]
        options = dict(color=COLOURS[placement], linestyle=styles.get(k, "-"), marker="o", markersize=3)
        gpus = [r["gpus"] for r in own]
        left.plot(gpus, [r["tokens_per_s"] for r in own], label=f"{placement}, k = {k}", **options)
        right.plot(gpus, [r["efficiency"] for r in own], **options)
    ideal = min(rows, key=lambda r: (r["gpus"], r["placement"] != "colocated", r["staleness"]))
    ends = [ideal["gpus"], max(r["gpus"] for r in rows)]
    left.plot(ends, [ideal["tokens_per_s_per_gpu"] * g for g in ends], color="0.7", linewidth=1, label="proportional")
    for axes, label in ((left, "tokens a second"), (right, "efficiency a GPU")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("GPUs")
        axes.set_ylabel(label)
        axes.grid(alpha=0.25)
    left.set_yscale("log")
    right.set_ylim(bottom=0)
    left.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["3b", "7b", "72b"], default="3b")
    parser.add_argument("--scaling", choices=["weak", "strong"], default="weak")
    parser.add_argument("--gpus", type=int, nargs="+", default=[2**i for i in range(11)])
    parser.add_argument("--placements", nargs="+", choices=list(COLOURS), default=list(COLOURS))
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    for name, default in dict(prompts=64, group=5, prompt_tokens=1000, length=500, limit=2048).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--spread", type=float, default=0.8, help="standard deviation of completion lengths over their mean")
    parser.add_argument("--set", action="append", default=[], metavar="COST=VALUE", help="change a cost, in its units")
    parser.add_argument("--quick", action="store_true", help="don't compute what limits each setting")
    parser.add_argument("--times", type=Path, help="output of step_gpu.py")
    parser.add_argument("--calibrate", type=Path, nargs="+", default=[], metavar="RUN_DIR")
    parser.add_argument("--validate", type=Path, nargs="+", default=[], metavar="RUN_DIR")
    parser.add_argument("--plot", metavar="FILE.png")
    args = parser.parse_args()
    if args.validate:
        print(json.dumps({"benchmark": "pipeline", "validated": validated(args.validate, args.calibrate)}))
        return
    names = ("prompts", "group", "prompt_tokens", "length", "spread", "limit")
    job = Job(**{name: getattr(args, name) for name in names})
    costs, smallest = sources.arithmetic(args.model, job), sources.smallest(args.model)
    source: Any = {"arithmetic": args.model, "smallest_gpus": smallest, **sources.H200}
    if args.times:
        source = json.loads(args.times.read_text())
        job, costs = sources.from_step(source, costs)
    elif args.calibrate:
        runs = [sources.read_run(run) for run in args.calibrate]
        job, costs, source = with_length(runs[0].job), sources.calibrated(runs), [str(run) for run in args.calibrate]
    for name, _, value in (setting.partition("=") for setting in args.set):
        costs = replace(costs, **{name: type(getattr(costs, name))(float(value))})
    rows = sweep(args, job, costs, smallest if not args.calibrate else 1)
    found = {"benchmark": "pipeline", "scaling": args.scaling, "job": asdict(job), "costs": asdict(costs), "source": source}
    print(json.dumps(found | {"points": rows, "faults": lasting(rows, Faults())}))
    if args.plot:
        plot(rows, f"Qwen2.5-VL {args.model.upper()}, {args.scaling} scaling, simulated", args.plot)


if __name__ == "__main__":
    main()

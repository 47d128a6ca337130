"""Every algorithm on the digits from the same warm start: held-out accuracy over seeds, and seconds per step.

    python benchmarks/algorithms.py [--algorithms grpo ppo ...] [--seeds 0 1 2] [--steps 100] [--side-by-side 2]
        [--write-docs] [--keep]

Beside the algorithms there are the rows of `VARIANTS`, which are keys of a stage. Each run is `mmrl train` in a separate process
with one thread. `--side-by-side` runs are concurrent, which slows the steps of all algorithms equally. Only the algorithm's id
differs, so each has its own defaults (KL, sampling rules, a critic); the learning rate was not tuned for any of them.
`--write-docs` writes the table into docs/algorithms.md; with `--keep` the rows of other algorithms that stand there stay. Prints
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import machine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
TASK = "classification/digits"
RUN_FILE = """\
name = "{name}"
runs_dir = "{runs}"
seed = {seed}
policy = {{ model = "{model}" }}
tasks = [{{ id = "classification/digits" }}]
stages = [{stage}]
generate = {{ max_tokens = 8 }}
evaluate = {{ num_prompts = 397 }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = 1 }}
"""
WARM = '{ kind = "sft", split = "warm", steps = 60, batch_size = 64, learning_rate = 1e-3 }'
RATE = 'steps = {steps}, learning_rate = 4e-4, schedule = "linear"{more}'
RL = f'{{{{ kind = "rl", algorithm = "{{id}}", prompts_per_step = 24, {RATE} }}}}'
WIDE = f'{{{{ kind = "rl", algorithm = "{{id}}", prompts_per_step = 3, {RATE} }}}}'
IMITATES = f'{{{{ kind = "sft", batch_size = 24, {RATE} }}}}'
VARIANTS = {
    "sft on the same images": (IMITATES, "", ""),
    "dft on the same images": (IMITATES, "", ', token_weights = "probability"'),
    "grpo, hpt": (RL, "grpo", ', imitation = {{ rule = "hpt" }}'),
    "grpo, relift": (RL, "grpo", ', imitation = {{ rule = "relift" }}'),
    "ppo, hl-gauss": (RL, "ppo", ", critic = {{ bins = 51, low = -0.5, high = 1.5 }}"),
    "rover, 2 minibatches": (RL, "rover", ", minibatches = 2"),
    "pacs, 2 minibatches": (RL, "pacs", ", minibatches = 2"),
    "grpo, a fifth of the tokens": (RL, "grpo", ", settings = {{ entropy_share = 0.2 }}"),
    "grpo, aepo": (RL, "grpo", ", entropy_control = {{ target = 0.3 }}"),
    "grpo, 3 prompts of 8": (WIDE, "grpo", ", group_size = 8"),
    "grpo, 3 prompts of 64": (WIDE, "grpo", ", group_size = 64"),
    "grpo, 3 prompts of 512": (WIDE, "grpo", ", group_size = 512"),
    "archer": (RL, "archer", ", turn_critic = {{ warmup_steps = 20 }}"),
    "kdrl": (RL, "kdrl", ', teacher = "{teacher}", settings = {{ teacher_weight = 0.02 }}'),
}
"""Row -> (stage, algorithm, further keys). A teacher is the policy of a run of GRPO."""


def train(runs: Path, name: str, seed: int, model: str, stage: str) -> dict[str, Any]:
    """One run; its summary and the seconds of each step."""
    path = runs / f"{name}.toml"
    path.write_text(RUN_FILE.format(name=name, runs=runs, seed=seed, model=model, stage=stage))
    command = [sys.executable, "-m", "mmrl", "train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    rows = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    times = [row["metrics"]["time/step"] for row in rows if "metrics" in row]
    return json.loads((runs / name / "summary.json").read_text()) | {"step_s": statistics.median(times)}


def figures(id: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One algorithm's accuracies over its seeds, with Student's 95% interval of the mean; of a single seed that of its images."""
    from mmrl.api.statistics import mean_interval

    values = [run["last"][TASK]["value"] for run in runs]
    last = runs[0]["last"][TASK]
    low, high = mean_interval(values) if len(values) > 1 else (last["low"], last["high"])
    return {
        "algorithm": id,
        "accuracy": round(statistics.fmean(values), 4),
        "low": round(max(low, 0.0), 4),
        "high": round(min(high, 1.0), 4),
        "seeds": [round(v, 4) for v in values],
        "step_s": round(statistics.median(run["step_s"] for run in runs), 3),
    }


def policy_of(runs: Path, name: str) -> str:
    """The policy that a run left."""
    (policy,) = (runs / name / "checkpoints").glob("step-*/policy")
    return str(policy)


def merged(rows: list[dict[str, Any]], page: str) -> list[dict[str, Any]]:
    """These rows and those of other algorithms in the page's table, the best first."""
    new = {row["algorithm"] for row in rows}
    kept = []
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and (id := cells[0].strip("`")) not in new:
            low, high = (float(x) for x in cells[2].split(" to "))
            seeds = [float(x) for x in cells[3].split(", ")]
            kept.append(
                {
                    "algorithm": id,
                    "accuracy": float(cells[1]),
                    "low": low,
                    "high": high,
                    "seeds": seeds,
                    "step_s": float(cells[4]),
                }
            )
    return sorted([*rows, *kept], key=lambda r: -r["accuracy"])


def how(found: dict[str, Any], page: str) -> str:
    """How the rows were measured; page: with rows that are kept."""
    minutes, beside, cores = found["wall_s"] / 60, found["side_by_side"], found["machine"]["cores"]
    before = [line for line in page.partition(BEGIN)[2].partition(END)[0].splitlines() if line.startswith("Measured with")]
    if not before:
        command = "python benchmarks/algorithms.py --write-docs"
        return f"Measured with `{command}` in {minutes:.0f} minutes, {beside} runs side by side on {cores} cores."
    names = ", ".join(f"`{row['algorithm']}`" for row in found["algorithms"])
    if "Added with" in before[0]:
        return f"{before[0].removesuffix('.')}; in {minutes:.0f} minutes more: {names}."
    return (
        f"{before[0]} Added with `--keep --algorithms` in {minutes:.0f} minutes, on {cores} cores that other work shared, so "
        f"that their seconds compare with no others: {names}."
    )


def table(found: dict[str, Any]) -> str:
    """The results as text for the docs."""
    warm = found["warm_start"]
    lines = [
        f"All start from one checkpoint of accuracy {warm['value']:.3f} ({warm['low']:.3f} to {warm['high']:.3f}) on {warm['n']} "
        f"held-out images, and train for {found['steps']} steps of 24 prompts with 8 completions each, at one learning rate that "
        "was chosen for none of them in particular. The interval is Student's over the seeds, and of a single seed that of its "
        "images; a seed's own accuracy is known to about 0.02. So small differences mean nothing, and a task this easy says "
        "little about a hard one.",
        "",
        "| algorithm | accuracy | 95% interval | seeds | s a step |",
        "|---|---|---|---|---|",
    ]
    for r in found["algorithms"]:
        seeds = ", ".join(f"{v:.3f}" for v in r["seeds"])
        lines.append(
            f"| `{r['algorithm']}` | {r['accuracy']:.3f} | {r['low']:.3f} to {r['high']:.3f} | {seeds} | {r['step_s']:.2f} |"
        )
    lines += ["", found["how"]]
    return "\n".join(lines)


def usable() -> list[str]:
    """The built-in algorithms that an rl stage can run with a policy that writes."""
    from mmrl.algorithms.presets import signals_of
    from mmrl.registry import plugins

    registry = plugins.registry()
    specs = registry.specs("algorithms").values()
    others = {*VARIANTS, "dppo", "bi-level-gae"}  # which are for policies that act, and for episodes of several turns
    rest = [s for s in specs if s.id not in others and "teacher_logprobs_NT" not in signals_of(registry.target(s))]
    return [*VARIANTS, *(s.id for s in rest)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=None, help="by default all that an rl stage can run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--keep", action="store_true", help="with --write-docs: keep the rows of other algorithms")
    args = parser.parse_args()
    started, ids, runs = time.perf_counter(), args.algorithms or usable(), Path(tempfile.mkdtemp())
    warm = train(runs, "warm", 0, "tiny:qwen2_5_vl", WARM)
    model = policy_of(runs, "warm")
    if any("{teacher}" in VARIANTS[id][2] for id in ids if id in VARIANTS):
        train(runs, "teacher", 9, model, RL.format(id="grpo", steps=args.steps, more=""))

    def one(job: tuple[str, int]) -> dict[str, Any]:
        id, seed = job
        stage, algorithm, more = VARIANTS.get(id, (RL, id, ""))
        more = more.format(teacher=policy_of(runs, "teacher") if "{teacher}" in more else "")
        name = f"{id.replace(', ', '-').replace(' ', '-')}-{seed}"
        return train(runs, name, seed, model, stage.format(id=algorithm, steps=args.steps, more=more))

    jobs = [(id, seed) for id in ids for seed in args.seeds]
    with ThreadPoolExecutor(args.side_by_side) as pool:
        results = dict(zip(jobs, pool.map(one, jobs), strict=True))
    rows = [figures(id, [results[id, seed] for seed in args.seeds]) for id in ids]
    found = {
        "benchmark": "algorithms",
        "steps": args.steps,
        "side_by_side": args.side_by_side,
        "warm_start": warm["last"][TASK],
        "algorithms": sorted(rows, key=lambda r: -r["accuracy"]),
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))
    if args.write_docs:
        text = PAGE.read_text()
        found["how"] = how(found, text if args.keep else "")
        if args.keep:
            found["algorithms"] = merged(found["algorithms"], text)
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}")


if __name__ == "__main__":
    main()

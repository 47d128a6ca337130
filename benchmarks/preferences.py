"""Preferences between answers to digits, from one warm start: DPO, and reward models that are generative and scalar.

    python benchmarks/preferences.py [--parts dpo generative scalar] [--folder FOLDER]

A tiny model with random weights is fine-tuned on the hundred labelled digits of the split `warm`, as `make demo` does. The
generative reward model is another: it learns to read the 1,300 digits of `train` first, by Muon from weights of unit gain, as a
verdict needs that and a two-layer model that can't read yet says the same of every answer. The pair of a digit is its right
answer, and a wrong one that depends on the picture alone. Everything is trained on the 1,300 pairs of `train` and measured on
the 397 digits of `test`: the accuracy of the policy's greedy answers before and after DPO;
how often a generative reward model (`judge/right`) says yes and no rightly, and how often yes is likelier for the right
answer of a pair than for the wrong one; how often a scalar reward model rates the right answer higher. Intervals are
Wilson's, of 95%. Each run is `mmrl train` in a process with one thread, one after the other. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import learning
from machine import machine

COMMON = """\
name = "{name}"
runs_dir = "{runs}"
policy = {{ {policy} }}
tasks = [{{ {task} }}]
stages = [{{ {stage} }}]
generate = {{ max_tokens = 8 }}
evaluate = {{ num_prompts = {prompts} }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = 1 }}
"""
DIGITS = 'id = "classification/digits"'
HELD_OUT = 397
WARM = 'kind = "sft", split = "warm", steps = 60, batch_size = 64, learning_rate = 1e-3'
MUON = 'batch_size = 64, optimizer = "muon", beta1 = 0.95, learning_rate = 3e-3, warmup_steps = 20, schedule = "linear"'
READ = f'kind = "sft", steps = 120, {MUON}'
STAGES = {
    "dpo": 'kind = "preference", loss = "dpo", beta = 0.1, steps = 150, prompts_per_step = 32, learning_rate = 3e-4, '
    'schedule = "linear"',
    "generative": f'kind = "sft", steps = 300, {MUON}',
    "scalar": 'kind = "preference", loss = "bradley-terry", steps = 150, prompts_per_step = 32, learning_rate = 5e-4, '
    'schedule = "linear"',
}


def run_file(runs: Path, name: str, policy: str) -> str:
    """The text of a part's run file."""
    task, prompts = DIGITS, HELD_OUT
    if name == "generative":
        task, prompts = 'id = "judge/right", options = { task = "classification/digits" }', 2 * HELD_OUT
    stage = {"warm": WARM, "read": READ, **STAGES}[name]
    return COMMON.format(name=name, runs=runs, policy=policy, task=task, stage=stage, prompts=prompts)


def reader(runs: Path) -> tuple[Path, learning.Run]:
    """(checkpoint of a model that reads digits and has a token for each word of a verdict, its run)."""
    from mmrl_judge.wording import NO, RIGHT, YES

    digits = [f"<answer>{digit}</answer>" for digit in range(10)]
    learning.write_start(runs / "start", ["What digit is shown?", *digits, RIGHT, YES, NO])
    read = learning.train(runs, "read", run_file(runs, "read", f'model = "{runs / "start"}"'))
    return learning.checkpoint(runs, "read"), read


def pairs_by_yes(model: Path) -> tuple[int, int]:
    """(pairs of `test` whose right answer the generative reward model finds likelier to be right, pairs)."""
    from mmrl_judge.wording import NO, YES, ask_right

    from mmrl.api.services import pairs_of, task_of, vision_language

    pairs, judge = pairs_of(task_of("classification/digits"), "test", 0), vision_language(str(model), device="cpu", batch_size=32)
    asked = [ask_right(prompt.messages, answer) for prompt, *sides in pairs for answer in sides]
    yes_P2 = judge.answer_probabilities(asked, (YES, NO))[:, 0].reshape(-1, 2)
    return int((yes_P2[:, 0] > yes_P2[:, 1]).sum()), len(pairs)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """An evaluation, rounded."""
    return {**{key: round(row[key], 4) for key in ("value", "low", "high")}, "n": row["n"]}


def main() -> None:
    from mmrl.api.statistics import wilson

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", choices=list(STAGES), nargs="+", default=list(STAGES))
    parser.add_argument("--folder", type=Path, default=None, help="Folder for the runs; by default a temporary one.")
    args = parser.parse_args()
    started, runs = time.perf_counter(), args.folder or Path(tempfile.mkdtemp())
    runs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"benchmark": "preferences"}
    start = Path()
    if set(args.parts) - {"generative"}:
        warm = learning.train(runs, "warm", run_file(runs, "warm", 'model = "tiny:qwen2_5_vl"'))
        start = learning.checkpoint(runs, "warm")
        found |= {"warm_start": shown(warm.evaluations[-1]), "warm_s": warm.wall_s}
    for name in args.parts:
        model, kind = start, 'kind = "reward", ' if name == "scalar" else ""
        if name == "generative":
            model, read = reader(runs)
            found |= {"reads": shown(read.evaluations[-1]), "read_s": read.wall_s}
        run = learning.train(runs, name, run_file(runs, name, f'{kind}model = "{model}"'))
        found[name] = {"before": shown(run.evaluations[0]), "after": shown(run.evaluations[-1]), "wall_s": run.wall_s}
        if name == "generative":
            right, pairs = pairs_by_yes(learning.checkpoint(runs, name))
            low, high = wilson(right, pairs)
            found[name]["pairs"] = {"value": round(right / pairs, 4), "low": round(low, 4), "high": round(high, 4), "n": pairs}
    print(json.dumps({**found, "wall_s": round(time.perf_counter() - started, 1), "machine": machine()}))


if __name__ == "__main__":
    main()

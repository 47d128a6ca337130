"""What the parts of a step cost: by arithmetic on published shapes and data sheets, from a measured step, or from run folders."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from model_shapes import shape
from pipeline_model import Costs, Job, Network, spread_for

H200 = {
    "published": {
        "flops": 989e12,  # bfloat16, dense
        "memory_bytes_s": 4.8e12,
        "memory_bytes": 141e9,
        "nvlink_bytes_s": 450e9,  # one direction
        "card_bytes_s": 50e9,  # InfiniBand NDR, 400 Gbit/s for each GPU
    },
    "assumed": {
        "update_share": 0.35,  # of the published operations, recomputed ones among them
        "prefill_share": 0.5,
        "memory_share": 0.6,  # of the published bandwidth, when decoding
        "network_share": 0.8,
        "decode_overhead_s": 0.003,  # a token: scheduling and sampling beside what CUDA graphs run
        "hop_s": 2e-6,
        "hop_between_s": 8e-6,
        "objects_bytes_s": 2e9,
        "cores": 8,  # of a machine's, for each GPU, that work on pictures
        "judges": 4,
        "judge_s": 0.002,
        "judge_spread": 1.0,
        "load_s": 0.5,
        "told_bytes": 4.5,  # characters of a token, each a byte
    },
    "measured_on_a_cpu": {
        "picture_s": 0.0163,  # 512 x 512: decoding a JPEG 0.003, resizing, normalising and cutting into patches 0.0133
        "patches": 1296,
        "told_completion_bytes": 165,  # beside its text, pickled as other ranks are told it, with its score: telling.py
        "told_read_s": 3.7e-5,  # of 256 ranks; 1.9e-5 of 64, 1.1e-5 of 8
    },
}
"""No figure of it was measured on a GPU: stage times made of it are arithmetic."""
BYTES_A_WEIGHT = 18
"""In training: bfloat16 weight, float32 master, gradient and two moments."""


def arithmetic(size: str, job: Job, sheet: Mapping[str, Mapping[str, float]] = H200) -> Costs:
    """Of Qwen2.5-VL `3b`, `7b` or `72b` on H200s, one picture of 512 x 512 a prompt."""
    model = shape(size)
    v = {name: value for part in sheet.values() for name, value in part.items()}
    seen = job.prompt_tokens / 2
    forward = model.text_flops(job.prompt_tokens, seen, 0) + model.vision_flops(v["patches"])
    context = job.prompt_tokens + job.length / 2
    one = model.text_flops(1, context, 1)
    memory, update = v["memory_bytes_s"] * v["memory_share"], v["flops"] * v["update_share"]
    return Costs(
        process=v["picture_s"],
        cores=v["cores"],
        prefill=forward / (v["flops"] * v["prefill_share"]),
        decode_step=model.bytes / memory + v["decode_overhead_s"],
        decode_row=2 * model.kv * context / memory + one / (v["flops"] * v["prefill_share"]),
        at_once=512,
        judge=v["judge_s"],
        judge_spread=v["judge_spread"],
        judges=int(v["judges"]),
        update_prompt=4 * forward / update,  # a backward pass is two forward ones, and checkpointing repeats the forward
        update_token=4 * one / update,
        micro_tokens=16384,
        optimizer=30 * model.weights / memory,  # bytes that Adam reads and writes
        other=0.2,
        layers=model.layers,
        weights=float(model.bytes),
        told_bytes=v["told_bytes"],
        told_completion_bytes=v["told_completion_bytes"],
        told_read=v["told_read_s"],
        load=v["load_s"],
        tensor_parallel={"3b": 1, "7b": 1, "72b": 8}[size],
        network=Network(
            inside=v["nvlink_bytes_s"] * v["network_share"],
            between=v["card_bytes_s"] * v["network_share"],
            hop=v["hop_s"],
            hop_between=v["hop_between_s"],
            objects=v["objects_bytes_s"],
        ),
    )


def smallest(size: str) -> int:
    """GPUs without which weights, gradients and optimiser don't fit into 0.9 of their memory."""
    need, each = shape(size).weights * BYTES_A_WEIGHT, 0.9 * H200["published"]["memory_bytes"]
    return 2 ** int(np.ceil(np.log2(max(1.0, need / each))))


def from_step(measured: Mapping[str, Any], base: Costs) -> tuple[Job, Costs]:
    """Of what `step_gpu.py` printed; the network and the judge stay those of `base`, as one GPU says nothing of them."""
    seconds, prompts, group, tokens = measured["median_s"], measured["prompts"], measured["group"], measured["tokens"]
    job = Job(prompts=prompts, group=group, prompt_tokens=measured["prompt_tokens"], length=tokens, spread=0.0, limit=tokens)
    trained = prompts * (measured["prompt_tokens"] + group * tokens)
    return job, replace(
        base,
        process=seconds["process"] / prompts,
        cores=1.0,
        prefill=seconds["prefill"] / prompts,
        decode_step=(seconds["generate"] - seconds["prefill"]) / tokens,
        decode_row=0.0,
        update_prompt=seconds["update"] * measured["prompt_tokens"] / trained,
        update_token=seconds["update"] / trained,
        optimizer=0.0,  # in the update
    )


# -- run folders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The steps of a run that was made in one process. Arrays are [S]."""

    job: Job
    seconds: dict[str, np.ndarray]
    """`process`, `generate`, `judge`, `update`, `other`, `step`."""
    lengths: np.ndarray
    """Mean tokens of a completion."""
    longest: np.ndarray
    trained: np.ndarray
    """Share of the groups that had spread."""


def read_run(folder: Path, first: int = 0, last: int | None = None, skip: int = 2) -> Measured:
    """The `rl` steps of a run folder. skip: steps at the start that warm up; first, last: of those that are left."""
    config = tomllib.loads((folder / "config.toml").read_text())
    stage = next(s for s in config["stages"] if s["kind"] == "rl")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [r["metrics"] for r in rows if r.get("stage") == "rl" and "metrics" in r][skip:][first:last]
    if not steps:
        raise SystemExit(f"{folder}: no steps of a stage of kind rl in metrics.jsonl")
    seconds = {k: np.array([s[f"time/{k}"] for s in steps]) for k in ("process", "generate", "judge", "update", "other", "step")}
    lengths, longest = (np.array([s[f"length/{k}"] for s in steps]) for k in ("mean", "max"))
    count = stage["prompts_per_step"] * stage["group_size"]
    trained = 1 - np.array([s["zero_std_share"] for s in steps])
    job = Job(
        prompts=stage["prompts_per_step"],
        group=stage["group_size"],
        prompt_tokens=0,
        length=float(lengths.mean()),
        spread=spread_for(round(float(longest.mean() / lengths.mean()), 2), count),
        limit=config["generate"]["max_tokens"],
        trained=float(trained.mean()),
    )
    return Measured(job=job, seconds=seconds, lengths=lengths, longest=longest, trained=trained)


def calibrated(runs: Sequence[Measured]) -> Costs:
    """Costs of one process, by least absolute deviations over the steps of all runs, as other programs make some steps slow; none
    below 0. A part that didn't vary between the steps can't be told from another that is proportional to it, so runs of different
    sizes say more."""
    from scipy.optimize import nnls

    def fit(part: str, *columns: str) -> list[float]:
        features, seen = [], []
        for run in runs:
            prompts, count = run.job.prompts, run.job.prompts * run.job.group
            known = {
                "one": np.ones(len(run.lengths)),
                "prompts": np.full(len(run.lengths), prompts),
                "completions": np.full(len(run.lengths), count),
                "longest": run.longest,
                "tokens": run.lengths * count,
                "trained": run.trained * prompts,
                "trained_tokens": run.trained * run.lengths * count,
            }
            features.append(np.stack([known[c] for c in columns], 1))
            seen.append(run.seconds[part])
        x, y = np.concatenate(features).astype(float), np.concatenate(seen)
        scale, weight = np.abs(x).max(0), np.ones(len(y))
        for _ in range(30):  # least squares, with steps that are far off counting less each time
            found = nnls(x / scale * weight[:, None], y * weight)[0]
            weight = 1 / np.sqrt(np.maximum(np.abs(x / scale @ found - y), 1e-3 * np.median(y) + 1e-12))
        return [float(v) for v in found / scale]

    prefill, step, row = fit("generate", "prompts", "longest", "tokens")
    fixed, prompt, token = fit("update", "one", "trained", "trained_tokens")
    return Costs(
        process=fit("process", "prompts")[0],
        prefill=prefill,
        decode_step=step,
        decode_row=row,
        judge=fit("judge", "completions")[0],
        update_prompt=prompt,
        update_token=token,
        optimizer=fixed,
        other=fit("other", "one")[0],
    )

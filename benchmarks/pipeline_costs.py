"""Costs of the parts of a step: computed from published shapes and data sheets, from a measured step, or from run folders."""

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
        "update_share": 0.35,  # of the published operations, including recomputed ones
        "prefill_share": 0.5,
        "memory_share": 0.6,  # of the published bandwidth, when decoding
        "network_share": 0.8,
        "decode_overhead_s": 0.003,  # per token: scheduling and sampling outside CUDA graphs
        "hop_s": 2e-6,
        "hop_between_s": 8e-6,
        "objects_bytes_s": 2e9,
        "cores": 8,  # CPU cores per GPU for pictures
        "judges": 4,
        "judge_s": 0.002,
        "judge_spread": 1.0,
        "load_s": 0.5,
        "told_bytes": 4.5,  # characters per token, each one byte
    },
    "measured_on_a_cpu": {
        "picture_s": 0.0163,  # 512 x 512: decoding a JPEG 0.003, resizing, normalising and cutting into patches 0.0133
        "patches": 1296,
        "told_completion_bytes": 165,  # without its text, pickled for other ranks, with its score: telling.py
        "told_read_s": 3.7e-5,  # from 256 ranks; 1.9e-5 from 64, 1.1e-5 from 8
    },
}
"""None of these was measured on a GPU: stage times derived from them are calculations."""
BYTES_A_WEIGHT = 18
"""Bytes per weight in training: bfloat16 weight, float32 master, gradient and two moments."""


def arithmetic(size: str, job: Job, sheet: Mapping[str, Mapping[str, float]] = H200) -> Costs:
    """Costs of Qwen2.5-VL `3b`, `7b` or `72b` on H200s, with one picture of 512 x 512 per prompt."""
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
        update_prompt=4 * forward / update,  # backward costs two forward passes, and checkpointing repeats forward
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
    """Least number of GPUs whose memory holds weights, gradients and optimiser in 90% of it."""
    need, each = shape(size).weights * BYTES_A_WEIGHT, 0.9 * H200["published"]["memory_bytes"]
    return 2 ** int(np.ceil(np.log2(max(1.0, need / each))))


def from_step(measured: Mapping[str, Any], base: Costs) -> tuple[Job, Costs]:
    """Job and costs from the output of `step_gpu.py`; network and judge are those of `base`, as one GPU doesn't measure them."""
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
        optimizer=0.0,  # included in the update
    )


# -- run folders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The steps of a run in one process. Arrays are [S]."""

    job: Job
    seconds: dict[str, np.ndarray]
    """`process`, `generate`, `judge`, `update`, `other`, `step`."""
    lengths: np.ndarray
    """Mean tokens per completion."""
    longest: np.ndarray
    trained: np.ndarray
    """Share of the groups whose rewards differ."""


def read_run(folder: Path, first: int = 0, last: int | None = None, skip: int = 2) -> Measured:
    """The `rl` steps of a run folder. skip: warm-up steps at the start; first, last: range of the remaining steps."""
    config = tomllib.loads((folder / "config.toml").read_text())
    stage = next(s for s in config["stages"] if s["kind"] == "rl")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [r["metrics"] for r in rows if r.get("stage") == "rl" and "metrics" in r][skip:][first:last]
    if not steps:
        raise SystemExit(f"{folder}: metrics.jsonl has no steps of an rl stage")
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
    """Costs of one process, fitted by least absolute deviations over the steps of all runs, as other programs slow some steps
    down; none below 0. Parts that don't vary independently between the steps can't be separated, so use runs of different
    sizes."""
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
        for _ in range(30):  # iteratively reweighted least squares, with lower weights for outliers
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

"""A step of decoding a full-size Qwen2.5-VL with random weights, without and with CUDA graphs: milliseconds a token.

    python benchmarks/decode_gpu.py [--size 3b|7b|tiny] [--rows 64 320] [--group 5] [--prompt-tokens 1000] [--tokens 200]
        [--pixels 512] [--steps 24] [--device cuda]

For each number of rows: `plain`, as the sampler decodes by default, with prompts of one length, and `padded`, with a mask, as with
prompts of several; `rooms`, the step of fixed shape without a graph; `graphs`, its graph. `..._hosts_ms` is the host's time of a step,
before it waits: where it equals `..._ms`, the host is what takes long. `choose_ms` is what follows the logits: log-probabilities and
the draw. `first_s` is prefill, capture and first step, `gap` the greatest difference of a log-probability from `plain` after the same
tokens, in nats, `ratio` plain_ms over graphs_ms. Prints one JSON object.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from machine import keep, machine
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.decode_graphs import DecodeGraphs
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.room_rows import RoomRows
from mmrl.rollout.generate.rows import Rows
from mmrl.rollout.generate.sampling import SamplingParams
from on_device import loaded, sized, sized_parser
from step_gpu import lowering, prompts_of, wait

WORK = dict(rows=[64, 320], group=5, prompt_tokens=1000, tokens=200, pixels=512, steps=24)
TINY = WORK | dict(rows=[3, 6], group=2, prompt_tokens=80, tokens=12, pixels=112, steps=3)


def decoded(sampler: LocalGenerator, rows: Rows, args: argparse.Namespace) -> tuple[dict[str, float], torch.Tensor]:
    """(milliseconds, the log-probabilities [N, V] in the end) of `steps` steps after a few that warm up, of the same token."""
    policy, warm, last = sampler.policy, 3, torch.empty(0)
    token_N = torch.full((len(rows.row_N),), 5, device=policy.device)
    for t in range(warm):
        rows.step(token_N, t)
    wait(policy)
    started = time.perf_counter()
    for t in range(warm, warm + args.steps):
        last = rows.step(token_N, t)
    hosts = time.perf_counter() - started
    wait(policy)
    seconds = time.perf_counter() - started
    found = {"ms": seconds, "hosts_ms": hosts}
    return {name: round(s / args.steps * 1e3, 3) for name, s in found.items()}, last.float().log_softmax(-1)


def chosen(sampler: LocalGenerator, logits_NV: torch.Tensor, steps: int) -> float:
    """Milliseconds to choose a token of each row."""
    policy, sampling = sampler.policy, SamplingParams(max_tokens=1, temperature=1.0)
    drawn_N = torch.rand(len(logits_NV), dtype=torch.float64).to(policy.device)
    sampler._choose(logits_NV, sampling, drawn_N)
    wait(policy)
    started = time.perf_counter()
    for _ in range(steps):
        sampler._choose(logits_NV, sampling, drawn_N)
    wait(policy)
    return round((time.perf_counter() - started) / steps * 1e3, 3)


@torch.inference_mode()
def compare(policy: VLM, inputs: list[Any], group: int, args: argparse.Namespace, found: dict[str, Any]) -> Iterator[None]:
    """Adds to `found` what one number of rows comes to; yields after each way."""
    sampler = LocalGenerator(policy, len(inputs) * group)
    found["rows"] = len(inputs) * group
    ends: dict[str, torch.Tensor] = {}
    for way in ("plain", "padded", "rooms", "graphs"):
        graphs = DecodeGraphs(policy, sampler.batch_size)
        if way == "rooms" or (way == "graphs" and policy.device.type != "cuda"):
            graphs.failure = "not asked for"
        started = time.perf_counter()
        if way in ("plain", "padded"):
            rows = Rows(sampler, inputs, group)
            if way == "padded":
                rows.mask = torch.ones(len(rows.row_N), rows.cache.get_seq_length(), dtype=torch.long, device=policy.device)
        else:
            rows = RoomRows(sampler, inputs, group, graphs, args.tokens)
        if way == "graphs":
            rows.step(torch.full((len(rows.row_N),), 5, device=policy.device), 0)
            wait(policy)
            found["first_s"] = round(time.perf_counter() - started, 3)
            found |= {"captures": graphs.captured, "failure": graphs.failure, "room": list(graphs.rooms)}
            del rows
            rows = RoomRows(sampler, inputs, group, graphs, args.tokens)
        times, ends[way] = decoded(sampler, rows, args)
        found |= {f"{way}_{name}": value for name, value in times.items()}
        if way == "plain":
            found["choose_ms"] = chosen(sampler, rows.logits, args.steps)
        del rows
        yield
    allowed = ends["plain"].isfinite()
    found["gap"] = {way: float((ends[way] - ends["plain"])[allowed].abs().max()) for way in ("padded", "rooms", "graphs")}
    found["ratio"] = round(found["plain_ms"] / found["graphs_ms"], 2)


def measured(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Adds each number of rows to `found`."""
    policy = loaded(args.size, args.device)
    if not policy.family.pads_prompts:  # prompts have one length here, so that they can be decoded together all the same
        policy.family.use(replace(policy.family.capabilities, pads=True))
    prompts = prompts_of(policy, max(args.rows) // args.group, args.pixels, args.prompt_tokens)
    inputs = [policy.encode(prompt) for prompt in prompts]
    found |= {"prompt_tokens": len(inputs[0].ids), "cases": []}
    for rows in args.rows:
        group = max(1, rows // len(inputs))
        found["cases"].append({})
        for _ in compare(policy, inputs, group, args, found["cases"][-1]):
            keep(found)
        if policy.device.type == "cuda":
            found["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
            torch.cuda.empty_cache()


def main() -> None:
    args = sized(sized_parser(__doc__, WORK, TINY).parse_args(), WORK, TINY)
    asked = list(args.rows)

    def lower() -> None:
        args.rows = [max(1, rows // 2) for rows in args.rows]

    found = lowering(measured, args, lower)
    print(json.dumps({"benchmark": "decode_gpu", **found, "asked": asked, "machine": machine()}))


if __name__ == "__main__":
    main()

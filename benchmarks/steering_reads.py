"""Calls per second of a policy that steers a frozen one, whose base reads a call's pictures once, against one whose base reads
them for the hidden states and again to act.

    python benchmarks/steering_reads.py [--rows 4] [--rounds 15] [--side 224]

Each kind of base is a small one with random weights. Both ways play the same observations, in turn, and must choose the same
actions. A quotient of 2 would be that of a base that does nothing but read. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from machine import machine
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.load import make_policy
from mmrl.policies.squashed import Squashed
from mmrl.policies.steered import Steered

SHARED = {"dims": 4, "chunk": 4, "state": 8}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "diffusion": ("tiny:diffusion:width=64,horizon=16,moments=1,times=10", {**SHARED, "scheduler": "DDIM"}),
    "vla": ("tiny:qwen2_5_vl:hidden=256,layers=4", {"dims": 4, "chunk": 4, "head": "flow"}),
    "pi0": ("tiny:pi0:hidden=256,layers=4,chunk=16", SHARED),
    "pi05": ("tiny:pi05:hidden=256,layers=4,chunk=16", SHARED),
    "smolvla": ("tiny:smolvla:hidden=256,layers=4,chunk=16", SHARED),
    "gr00t": ("tiny:gr00t:hidden=256,layers=4,chunk=16", SHARED),
    "xvla": ("tiny:xvla:hidden=256,layers=4,chunk=16", SHARED),
}


class ReadsTwice(Steered):
    """Without what is read once."""

    choose = Squashed.choose


def compared(kind: str, rows: int, rounds: int, side: int) -> dict[str, Any]:
    model, own = BASES[kind]
    options = {"base": {"kind": kind, "model": model, "options": own}, "state": 8}
    policy: Any = make_policy(PolicyConfig(kind="steered", model="mlp", options=options), device="cpu", seed=0)
    draw = torch.Generator().manual_seed(0)
    seen = Observation(
        images={"front": torch.randint(0, 256, (rows, side, side, 3), dtype=torch.uint8, generator=draw)},
        state=torch.randn(rows, 8, generator=draw),
        instructions=["pick up the red cube"] * rows,
    )
    numbers, seconds, actions = torch.arange(rows), dict[type, list[float]](), []
    for number in range(rounds + 1):
        for way in (Steered, ReadsTwice):
            policy.__class__ = way
            started = time.perf_counter()
            actions.append(policy.act(seen, numbers, numbers + number, 1.0).actions_nKA)
            if number:  # the first round warms up
                seconds.setdefault(way, []).append(time.perf_counter() - started)
        assert torch.equal(actions[-1], actions[-2])
    once, twice = (rows / statistics.median(seconds[way]) for way in (Steered, ReadsTwice))
    return {"once_per_s": once, "twice_per_s": twice, "times": once / twice}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4, help="environments at once")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--side", type=int, default=224, help="pixels of a picture's side")
    parser.add_argument("--kinds", nargs="+", choices=BASES, default=list(BASES))
    args = parser.parse_args()
    found = {kind: compared(kind, args.rows, args.rounds, args.side) for kind in args.kinds}
    print(json.dumps({"machine": machine(), "rows": args.rows, "side": args.side, "bases": found}))


if __name__ == "__main__":
    main()

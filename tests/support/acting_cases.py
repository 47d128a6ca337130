"""Tiny policies of each kind that acts, and observations of theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from mmrl.api.simulators.history import earlier
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.load import make_policy

VLA = {"kind": "vla", "model": "tiny:qwen2_5_vl:hidden=32,layers=2"}
FLOW = {"dims": 4, "chunk": 2, "state": 8, "steps": 3}
REPLAYED: dict[str, dict[str, Any]] = {
    "vla, one by one": {**VLA, "options": {"dims": 3, "chunk": 2, "bins": 16, "decoding": "one-by-one"}},
    "vla, at once": {**VLA, "options": {"dims": 3, "chunk": 2, "bins": 16}},
    "vla, adapters": {**VLA, "lora": {"rank": 2}, "options": {"dims": 3, "chunk": 1, "bins": 16, "decoding": "one-by-one"}},
    "vla, flow head": {**VLA, "options": {"dims": 3, "chunk": 2, "head": "flow"}},
    "openvla": {"kind": "vla", "model": "tiny:openvla:hidden=32,layers=1", "options": {"dims": 3}},
    "pi0": {"kind": "pi0", "model": "tiny:pi0:hidden=32,layers=1,chunk=3", "options": FLOW},
    "pi0, one noisy step": {"kind": "pi0", "model": "tiny:pi0:hidden=32,layers=1,chunk=3", "options": {**FLOW, "noisy": "one"}},
    "pi0, learned noise": {
        "kind": "pi0",
        "model": "tiny:pi0:hidden=32,layers=1,chunk=3",
        "options": {**FLOW, "noisy": "learned"},
    },
    "pi05": {"kind": "pi05", "model": "tiny:pi05:hidden=32,layers=1,chunk=3", "options": FLOW},
    "smolvla": {
        "kind": "smolvla",
        "model": "tiny:smolvla:hidden=32,layers=2,chunk=3",
        "options": {"dims": 4, "chunk": 2, "state": 8},
    },
    "xvla": {"kind": "xvla", "model": "tiny:xvla:hidden=32,layers=1,chunk=3", "options": FLOW},
    "gr00t": {"kind": "gr00t", "model": "tiny:gr00t:hidden=32,layers=1,chunk=3", "options": FLOW},
    "gr00t_n1d6": {"kind": "gr00t", "model": "tiny:gr00t_n1d6:hidden=32,layers=1,chunk=3", "options": FLOW},
    "diffusion": {"kind": "diffusion", "model": "tiny:diffusion:width=8,horizon=4,times=2", "options": {**FLOW, "steps": 2}},
}
"""Those of whose calls a part can be captured."""


def policy(name: str, device: str = "cpu") -> ActingPolicy:
    return made(REPLAYED[name], device)


def made(section: dict[str, Any], device: str = "cpu") -> Any:
    """section: `[policy]`."""
    found = make_policy(PolicyConfig(**section), device=torch.device(device), seed=0)
    assert isinstance(found, ActingPolicy)
    return found


def seen(policy: ActingPolicy, seed: int, rows: int, padded: bool = True) -> Observation:
    """Random pictures and states. padded: the instructions differ in length."""
    draw = torch.Generator().manual_seed(seed)
    texts = ["pick", "put the red cube down"] if padded else ["pick"]
    images = {"front": torch.randint(0, 256, (rows, 56, 56, 3), generator=draw, dtype=torch.uint8)}
    state = torch.randn(rows, 8 * policy.state_moments, generator=draw)
    shown = Observation(images=images, state=state, instructions=[texts[n % len(texts)] for n in range(rows)])
    before = {earlier("front", k): images["front"].flip(k) for k in range(1, policy.history + 1)}
    return replace(shown, images=images | before)

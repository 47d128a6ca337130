"""A tiny pi0 and what it is shown, for the tests of policies."""

from __future__ import annotations

import torch

from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.pi0.model import Pi0
from mmrl.policies.pi0.pi05 import Pi05

KINDS = {"pi0": Pi0, "pi05": Pi05}
MODEL = "tiny:pi0:hidden=32,layers=2,chunk=5"
MODELS = {kind: f"tiny:{kind}:hidden=32,layers=2,chunk=5" for kind in KINDS}
TEXTS = ["pick up the red cube", "push it", "stack the ball on the yellow box", "x"]
SEEDS, CALLS = torch.arange(50, 54), torch.arange(4)
DRAW = CallRandomness(seeds_n=SEEDS, calls_n=CALLS)


def seen(n=4, seed=0):
    noise = torch.Generator().manual_seed(seed)

    def picture(height, width):
        return torch.randint(0, 256, (n, height, width, 3), dtype=torch.uint8, generator=noise)

    return Observation(
        images={"front": picture(64, 64), "wrist": picture(40, 64)},
        state=torch.randn(n, 6, generator=noise),
        instructions=TEXTS[:n],
    )


def pi0(model="", attention="sdpa", dtype="float32", lora=None, source=None, kind="pi0", **options):
    config = PolicyConfig(model=model or MODELS[kind], kind=kind, attn_implementation=attention, dtype=dtype, lora=lora)
    return KINDS[kind](config, seed=1, source=source, **{"dims": 3, "chunk": 2, "state": 6, **options})


def moved(policy, by=0.05):
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(by * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)).to(p.dtype))
    return policy


def published(policy, shown, n):
    """What transformers' network is given for one row, alone and without padding."""
    ids = torch.tensor([policy._ids(shown.instructions[n], len(shown.images))])
    pixels = policy._pictures(shown)[n : n + 1]
    return {
        "state": policy._state(shown)[n : n + 1],
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": pixels,
        "pixel_attention_mask": torch.ones(pixels.shape[:2], dtype=torch.bool),
    }

"""Tiny Diffusion Policies and what they are shown, for the tests of policies."""

from __future__ import annotations

import torch

from mmrl.api.simulators.history import follow
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.diffusion.model import Diffusion

STATES = "tiny:diffusion:width=16,horizon=8,moments=2,times=4,pictures=0"
"""It reads the state alone, which takes a hundredth of the time of pictures."""
PICTURES = "tiny:diffusion:width=16,horizon=8,moments=2,times=4,pictures=1"
SEEDS, CALLS = torch.arange(50, 54), torch.arange(4)


def diffusion(model=STATES, source=None, **options):
    """Options that are None are those of the checkpoint."""
    tiny = {"dims": 3, "chunk": 2, "state": 6} if model.startswith("tiny:") else {}
    return Diffusion(PolicyConfig(model=model, kind="diffusion"), seed=1, source=source, **{**tiny, **options})


def seen(n=4, seed=0, moments=2):
    """What is seen at an episode's second moment or later."""
    noise = torch.Generator().manual_seed(seed)
    found = None
    for _ in range(moments):
        pictures = {
            name: torch.randint(0, 256, (n, high, 64, 3), dtype=torch.uint8, generator=noise)
            for name, high in (("front", 64), ("wrist", 40))
        }
        now = Observation(images=pictures, state=torch.randn(n, 6, generator=noise), instructions=["x"] * n)
        found = follow(now, found, torch.zeros(n, dtype=torch.bool), moments - 1, True)
    return found

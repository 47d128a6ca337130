"""A tiny X-VLA, for the tests of policies; what it is shown is in `pi0_cases`."""

from __future__ import annotations

from mmrl.config.sections import PolicyConfig
from mmrl.policies.xvla.model import XVLA

MODEL = "tiny:xvla:hidden=32,layers=2,chunk=5"


def xvla(model=MODEL, attention="sdpa", dtype="float32", lora=None, source=None, **options):
    """Options that are None are those of the checkpoint."""
    config = PolicyConfig(model=model, kind="xvla", attn_implementation=attention, dtype=dtype, lora=lora)
    return XVLA(config, seed=1, source=source, **{"dims": 3, "chunk": 2, "state": 6, **options})

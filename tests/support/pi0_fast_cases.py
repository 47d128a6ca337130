"""A tiny pi0-FAST, for the tests of policies. What it is shown is that of `pi0_cases`."""

from __future__ import annotations

import torch

from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.pi0.pi0_fast import Pi0Fast

MODEL = "tiny:pi0_fast:hidden=32,layers=2,chunk=5"


def pi0_fast(model=MODEL, attention="sdpa", dtype="float32", lora=None, source=None, **options):
    config = PolicyConfig(model=model, kind="pi0_fast", attn_implementation=attention, dtype=dtype, lora=lora)
    return Pi0Fast(config, seed=1, source=source, **{"dims": 3, "chunk": 2, "state": 6, "action_tokens": 24, **options})


def calls(policy, shown, choices, ratio="token"):
    """A pass of an update over these calls."""
    count = len(choices)
    logprobs_nKC, tokens_n = policy.unsampled(choices)
    none = torch.zeros(0)
    return ActionMicroBatch(
        sampler_logprobs_L=none,
        advantages_L=none,
        rollout_L=none,
        place_L=none,
        off_policy_L=none,
        observation=shown,
        choices=choices,
        slots=logprobs_nKC.shape[-1],
        valid_SK=torch.ones(count, policy.chunk, dtype=torch.bool),
        ratio=ratio,
        tokens_S=tokens_n,
    )

"""Calls of a vision-language model that acts."""

from __future__ import annotations

import torch

from mmrl.policies.batches import ActionMicroBatch


def calls(policy, shown, choices, logprobs, ratio="token"):
    """What `policy.outputs` takes, of what `act` found."""
    valid = torch.ones(choices.shape[:2], dtype=torch.bool)
    length = logprobs.numel() if ratio == "token" else choices.shape[0] * (choices.shape[1] if ratio == "action" else 1)
    some = torch.zeros(length)
    return ActionMicroBatch(
        observation=shown,
        choices=choices,
        slots=logprobs.shape[-1],
        valid_SK=valid,
        ratio=ratio,
        sampler_logprobs_L=logprobs.flatten() if ratio == "token" else some,
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )

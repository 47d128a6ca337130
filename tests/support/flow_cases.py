"""Calls and gradients of policies that turn noise into actions, for their tests."""

from __future__ import annotations

import torch

from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.gradient_checkpointing import gradient_checkpointing


def calls(shown, choices, chunk=2):
    some = torch.zeros(len(shown) * chunk)
    return ActionMicroBatch(
        observation=shown,
        choices=choices,
        slots=1,
        valid_SK=torch.ones(len(shown), chunk, dtype=torch.bool),
        ratio="action",
        sampler_logprobs_L=some,
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )


def gradients(policy, made, on=False):
    policy.model.zero_grad()
    with gradient_checkpointing(policy.model, on):
        policy.outputs(made, 1.0).logprobs_L.sum().backward()
    return {name: p.grad.clone() for name, p in policy.parameters() if p.grad is not None}

"""Tiny models with adapters, and a few steps of learning with them."""

import math

import torch

import vlm_cases as cases
from mmrl.config.sections import LoraConfig, PolicyConfig, SftStage
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.pack_conversations import pack

TINY = "tiny:{}:hidden=64,layers=2"
ALL = ["vision", "projector", "language"]


def policy(family="qwen2_5_vl", dtype="float32", source=None, seed=0, **lora):
    config = PolicyConfig(model=TINY.format(family), dtype=dtype, lora=LoraConfig(**{"rank": 4, "alpha": 16.0, **lora}))
    return VLM(config, source=source, seed=seed)


def batch(vlm, shared=True):
    """Completions of two prompts with pictures, with advantages that differ."""
    rollouts = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2)])
    return pack(rollouts, Credit(advantages=torch.linspace(-1.0, 1.0, 8)), vlm, shared_prefix=shared, budget=10_000)


def optimizer_of(vlm, **settings):
    stage = SftStage(kind="sft", steps=10, **{"learning_rate": 0.01, "max_grad_norm": math.inf, "weight_decay": 0.1, **settings})
    return Optimizer(list(vlm.parameters()), stage)


def train(vlm, optimizer, first=0, last=3):
    made = batch(vlm)
    for step in range(first, last):
        for micro in made.micro:
            logprobs, _ = vlm.logprobs(micro, 0.8)
            (-(logprobs * micro.advantages_L).sum()).backward()
            optimizer.gather()
        assert optimizer.step(step)["grad_norm"] > 0
    return vlm


def scores(vlm, shared=True):
    with torch.no_grad():
        return torch.cat([vlm.logprobs(m, 0.8)[0] for m in batch(vlm, shared).micro])

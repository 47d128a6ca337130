"""Policies with experts whose sampler takes other experts than their learner, and updates of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch

import vlm_cases as cases
from mmrl.algorithms.loss import clipped_surrogate
from mmrl.algorithms.presets import Algorithm
from mmrl.config.sections import PolicyConfig, RlStage, TrainConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.experts import choice, routers_of, with_experts
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.snapshot import SnapshotGenerator
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack

UNDERSTOOD = ("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe", "kimi_k25", "llama4", "step3p7", "qwen3_omni_moe")
SAMPLING = SamplingParams(max_tokens=8, temperature=1.0, seed=3, routes=True)


def policy(family: str = "qwen3_vl_moe", seed: int = 0, **options: object) -> VLM:
    """With routers so sure of themselves, and experts so unlike each other, that routes matter."""
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=64,layers=2,seed={seed}", **options))
    with torch.no_grad():
        for name, p in vlm.model.named_parameters():
            if ".experts." in name:
                p.mul_(8)
    return vlm


@contextlib.contextmanager
def flipped(model: torch.nn.Module) -> Iterator[list[int]]:
    """Inside, tokens whose first number is positive go through the experts that their routers like least. Counts, in a list of
    two, tokens and those."""
    counts = [0, 0]
    routers = list(routers_of(model).values())

    def forward(router: torch.nn.Module, hidden: torch.Tensor) -> object:
        own = type(router).forward(router, hidden)
        chosen_TK, logits_TE = choice(router, own)
        least_TK = logits_TE.topk(chosen_TK.shape[1], largest=False).indices
        odd_T = hidden.reshape(len(chosen_TK), -1)[:, 0] > 0
        counts[0], counts[1] = counts[0] + len(odd_T), counts[1] + int(odd_T.sum())
        router.forward = lambda x: type(router).forward(router, x)
        try:
            return with_experts(router, (hidden,), least_TK.where(odd_T[:, None], chosen_TK))
        finally:
            router.forward = lambda x: forward(router, x)

    for router in routers:
        router.forward = lambda x, router=router: forward(router, x)
    try:
        yield counts
    finally:
        for router in routers:
            del router.forward


def sampled(vlm: VLM, flip: bool = True, sampling: SamplingParams = SAMPLING, group: int = 4) -> list:
    """Rollouts of two prompts of different lengths, by a copy of the policy that flips routes."""
    generator = SnapshotGenerator(vlm)
    prompts = [cases.prompt(1), cases.prompt(4, 2)]
    collector = ConversationCollector(vlm, generator)
    with flipped(generator.policy.model) if flip else contextlib.nullcontext():
        return collector.collect(prompts, collector.encode(prompts), group, sampling)


def learner(vlm: VLM, train: TrainConfig | None = None, **stage: object) -> Learner:
    settings = {"kind": "rl", "steps": 1, "learning_rate": 1e-3, **stage}
    loss = functools.partial(clipped_surrogate, clip_low=0.2, clip_high=0.2)
    algorithm = Algorithm(id="test", advantage=print, needs=(), loss=loss, normalise="token", constant=1.0)
    return Learner(vlm, RlStage(**settings), algorithm, train=train)


def batch(vlm: VLM, rollouts: list, shared: bool = True, budget: int = 10_000):
    credit = Credit(advantages=torch.linspace(-1.0, 1.0, len(rollouts)))
    return pack(rollouts, credit, vlm, shared_prefix=shared, budget=budget, keep_zero=True)

"""A machine and run files to plan with, bytes that torch keeps, and micro-batches as a plan takes them."""

from dataclasses import replace

import torch

import vlm_cases as cases
from mmrl.config.sections import RunConfig
from mmrl.policies.batches import Credit
from mmrl.train.plan.machines import GB, TERA, Machine
from mmrl.train.plan.traced import saved_by
from mmrl.train.plan.workload import Micro
from mmrl.train.resolve import with_algorithm_defaults
from mmrl.train.update.pack_conversations import pack

GROUP = 4

MACHINE = Machine(
    name="plain", kind="gpu", memory=80 * 2**30, flops=100 * TERA, flops32=10 * TERA, bandwidth=1000 * GB, link=100 * GB,
    host=25 * GB, launch=0.0, matmul=1.0, attention=1.0, fused=1.0, blocks=1.0, streaming=1.0,
)  # fmt: skip


def run_file(**sections):
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 8, "group_size": 4}
    data = {"name": "x", "tasks": [{"id": "classification/digits"}], "stages": [stage]}
    data["policy"] = {"model": "Qwen/Qwen2.5-VL-3B", "dtype": "bfloat16", "max_pixels": 262144}
    for name, section in sections.items():
        data[name] = {**data[name], **section} if isinstance(data.get(name), dict) else section
    return with_algorithm_defaults(RunConfig.model_validate(data))


def seconds(plan, name, stage=0):
    return next(part.seconds for part in plan.stages[stage].seconds if part.name == name)


def kept(vlm, micro):
    """Bytes that a forward pass keeps, the weights and the log-probabilities over the vocabulary left out."""
    return saved_by(lambda: vlm.logprobs(micro, 1.0)) - 4 * len(micro.target_L) * len(vlm.bias_V)


def a_micro_batch(vlm, completion, prompts=2, size=(112, 112), patches=0, prompt=None):
    """Groups whose completions have this length, and what a plan takes them for. patches: of a prompt's picture, if its grid
    doesn't say. prompt: by default one with a picture of this size."""
    made = []
    for rollout in cases.rollouts(vlm, [prompt or cases.prompt(0, size=size)] * prompts, group=GROUP, longest=1):
        turn = replace(rollout.turns[0], token_ids=rollout.turns[0].token_ids * completion, logprobs=(-1.0,) * completion)
        made.append(replace(rollout, turns=(turn,)))
    some = Credit(advantages=torch.ones(GROUP * prompts))
    (micro,) = pack(made, some, vlm, shared_prefix=True, budget=10_000).micro
    rows, length = micro.ids_BS.shape
    planned = Micro(
        rows=rows,
        length=length,
        patches=rows * patches or int(micro.media["image_grid_thw"].prod(-1).sum()),
        targets=len(micro.target_L),
        prompt=length - GROUP * completion,
        completion=completion,
        members=((GROUP, rows),),
    )
    return micro, planned

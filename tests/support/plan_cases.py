"""Bytes that torch keeps, and micro-batches as a plan takes them, for the tests of plans."""

from dataclasses import replace

import torch

import vlm_cases as cases
from mmrl.policies.batches import Credit
from mmrl.train.plan.workload import Micro
from mmrl.train.update.pack_conversations import pack

GROUP = 4


def saved(model, forward):
    """Bytes that a forward pass of a model keeps for the backward pass, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found = {}

    def keep(t):
        t = t.detach()  # else an output would hold the pass that made it, which holds the output: nobody frees such a circle
        if t.untyped_storage().data_ptr() not in weights:
            found[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        forward()
    size = sum(t.untyped_storage().nbytes() for t in found.values())
    found.clear()  # hooks that torch holds hold it
    return size


def kept(vlm, micro):
    """Bytes that a forward pass keeps, the weights and the log-probabilities over the vocabulary left out."""
    return saved(vlm.model, lambda: vlm.logprobs(micro, 1.0)) - 4 * len(micro.target_L) * len(vlm.bias_V)


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

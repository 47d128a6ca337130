"""The rollouts of a step as answers to prompts whose images are masked, for `[stages.perception]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError
from mmrl.api.seeds import derive
from mmrl.api.tasks.perturb import masked
from mmrl.api.types import Prompt, Rollout
from mmrl.config.sections import PerceptionConfig
from mmrl.policies.batches import Batch
from mmrl.rollout.collector import Collector
from mmrl.train.sampling.prompted import prompted


def masked_rollouts(rollouts: Sequence[Rollout], collector: Collector, config: PerceptionConfig, seed: int) -> list[Conversation]:
    """The same tokens after prompts with masked images; a prompt's mask is the same for all its rollouts. Rollouts of prompts
    without images, and those of other ranks, stay as they are. Images of later turns aren't masked.

    Raises PluginError if a model's inputs of a masked image have other tokens.
    """

    def changed(rollout: Conversation) -> Prompt | None:
        prompt = rollout.prompt
        return masked(prompt, derive(seed, rollout.group), config.masked, config.patch) if prompt.images else None

    found = prompted(rollouts, collector, changed)
    for plain, less in zip([r for r in rollouts if isinstance(r, Conversation)], found, strict=True):
        if plain is not less and not torch.equal(plain.inputs.ids, less.inputs.ids):
            prompt = plain.prompt
            raise PluginError(f"prompt {prompt.id!r} of task {prompt.task!r} has other tokens if its image is masked")
    return found


def with_masked(batches: Sequence[Batch], masked: Sequence[Batch]) -> list[Batch]:
    """Mini-batches whose passes know those with masked images. masked: the mini-batches of `masked_rollouts`."""
    both = zip(batches, masked, strict=True)
    return [
        replace(batch, micro=tuple(replace(m, masked=less) for m, less in zip(batch.micro, other.micro, strict=True)))
        for batch, other in both
    ]


def with_masked_logprobs(batches: Sequence[Batch], masked_NT: torch.Tensor) -> list[Batch]:
    """Mini-batches whose passes know their tokens' log-probabilities with masked images. masked_NT: of each rollout's tokens."""
    return [
        replace(batch, micro=tuple(replace(m, masked_logprobs_L=masked_NT[m.rollout_L, m.place_L]) for m in batch.micro))
        for batch in batches
    ]

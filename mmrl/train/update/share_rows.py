"""Rows of conversations that a team of ranks computes together (`compute.sequence_parallel`).

Each rank samples and packs its own prompts, as without teams. Then the members of a team tell each other their micro-batches, so
that all of them have all, and each has the targets of some of the rollouts. A rollout is never divided, so that a loss may read
all of its tokens.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from mmrl.api.transfer import upload
from mmrl.compute.teams import Team
from mmrl.policies.batches import Batch, MicroBatch, Shared
from mmrl.policies.vlm.vlm import VLM

OF_TOKENS = (
    *("source_L", "target_L", "sampler_logprobs_L", "advantages_L", "rollout_L", "place_L", "off_policy_L"),
    *("values_L", "returns_L"),
)
OF_ROLLOUTS = ("final_R", "final_rollout_R")


def share_rows(batch: Batch, team: Team, policy: VLM) -> Batch:
    """The micro-batches of all members, in their order, with this rank's targets. batch: of this rank, on the host."""
    everyone = [micro for share in team.gather_object(batch.micro) for micro in share]
    return replace(batch, micro=tuple(own_targets(micro, number, team, policy) for number, micro in enumerate(everyone)))


def own_targets(micro: MicroBatch, number: int, team: Team, policy: VLM) -> MicroBatch:
    """A micro-batch with this rank's part of its targets, on the device, and its media on the host. Rollouts are dealt to the
    members in turn, beginning with another one in each micro-batch."""
    dealt_R = (torch.arange(len(micro.final_rollout_R)) + number) % team.size == team.place
    mine_L = torch.isin(micro.rollout_L, micro.final_rollout_R[dealt_R])
    tensors = {f.name: x for f in fields(micro) if isinstance(x := getattr(micro, f.name), torch.Tensor)}
    tensors |= {name: tensors[name][mine_L] for name in OF_TOKENS if name in tensors}
    tensors |= {name: tensors[name][dealt_R] for name in OF_ROLLOUTS}
    tensors["kept_K"] = torch.cat([micro.source_L, micro.final_R]).unique()
    there: dict[str, Any] = upload(tensors, policy.device)
    return replace(micro, shared=Shared(team=team, kept_K=there.pop("kept_K")), **there)

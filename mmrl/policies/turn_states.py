"""What critics of turns see of a conversation: hidden states of a frozen copy of the policy, where an observation and an answer
end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from mmrl.api.episodes import Conversation
from mmrl.policies.batches import Batch, MicroBatch
from mmrl.policies.vlm.vlm import VLM


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStates:
    """The states of a conversation with T answers."""

    seen_TH: torch.Tensor
    """float32 [T + 1, H]: before each answer, and at the end of the conversation."""
    said_TH: torch.Tensor
    """float32 [T, H]: after each answer."""


class TurnEyes:
    """A frozen copy of a policy that writes, as it was when this object was made, so that a memory of its states stays true."""

    def __init__(self, policy: VLM) -> None:
        self.copy, self.width = policy.clone(frozen=True), policy.width

    @torch.no_grad()
    def of(self, rollouts: list[Conversation], batch: Batch) -> dict[int, TurnStates]:
        """Index of a rollout -> its states, on the host. batch: these rollouts, packed; those that aren't in it are left out."""
        found: dict[int, TurnStates] = {}
        for micro in batch.micro:
            where = dict(_places(micro, rollouts))
            if not where:
                continue
            seen, said = (torch.tensor([p for pair in where.values() for p in pair[k]]) for k in (0, 1))
            asked = replace(micro, source_L=seen.to(micro.source_L.device), final_R=said.to(micro.final_R.device))
            states = self.copy.states(asked).float().cpu()
            before, after = states[: len(seen)], states[len(seen) :]
            counts = [len(own) for _, own in where.values()]
            pieces = zip(where, before.split([count + 1 for count in counts]), after.split(counts), strict=True)
            found |= {n: TurnStates(seen_TH=mine.clone(), said_TH=own.clone()) for n, mine, own in pieces}
        return found

    def state(self) -> dict[str, torch.Tensor]:
        """The copy's weights."""
        return dict(self.copy.parameters())

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` gave."""
        with torch.no_grad():
            for name, parameter in self.copy.parameters():
                parameter.copy_(tensors[name])


def _places(micro: MicroBatch, rollouts: list[Conversation]) -> Iterator[tuple[int, tuple[list[int], list[int]]]]:
    """For each rollout of a pass: (its index, (places before each answer and of its last token, places of each answer's last
    token)), in the flattened rows."""
    firsts = micro.place_L == 0
    prompts = dict(zip(micro.rollout_L[firsts].tolist(), micro.source_L[firsts].tolist(), strict=True))
    for n, final in zip(micro.final_rollout_R.tolist(), micro.final_R.tolist(), strict=True):
        turns = rollouts[n].turns
        first = final + 1 - sum(len(t.token_ids) + (len(t.observed_ids) if k else 0) for k, t in enumerate(turns))
        at, seen, said = first, [], []
        for k, turn in enumerate(turns):
            at += len(turn.observed_ids) if k else 0
            if turn.token_ids:
                seen.append(at - 1 if k else prompts[n])
                at += len(turn.token_ids)
                said.append(at - 1)
        yield n, ([*seen, final], said)

"""Rollouts and their credit -> batches: of words (`mmrl.pack`) or of calls (`mmrl.pack_tracks`), as the policy is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from mmrl.data.seeds import derive
from mmrl.pack import evened, pack
from mmrl.pack_tracks import pack_tracks
from mmrl.policies.acting import ActingPolicy
from mmrl.policies.policy import Policy
from mmrl.policies.vlm import VLM
from mmrl.schema import RlStage, RunConfig, Training
from mmrl.tracks import Ratio, size, values_of
from mmrl.types import Batch, Credit, Rollout

Forward = Callable[[frozenset[str]], Mapping[str, torch.Tensor]]
Dealt = Sequence[Batch] | Callable[[int], Sequence[Batch]]
"""An update's mini-batches: the same in each epoch, or epoch -> those of it."""


class Packer(Protocol):
    """What an update is made of."""

    def pack(
        self,
        rollouts: Sequence[Rollout],
        credit: Credit,
        stage: Training,
        *,
        keep_zero: bool,
        parts: int = 1,
        seed: int = 0,
        groups: Sequence[int] = (),
    ) -> list[Batch]:
        """`parts` batches, one for each optimiser step of a pass. groups: those that were sampled, where the rollouts' own are
        others by now."""
        ...

    def deal(
        self, rollouts: Sequence[Rollout], credit: Credit, stage: RlStage, *, keep_zero: bool, seed: int, groups: Sequence[int]
    ) -> Dealt:
        """The mini-batches of all epochs of an update; see `pack`."""
        ...

    def measured(
        self, rollouts: Sequence[Rollout], stage: Training, names: frozenset[str], forward: Forward
    ) -> Mapping[str, torch.Tensor]:
        """See `mmrl.algorithms.signals.Measure`. forward: measures in a forward pass."""
        ...


class WordPacker:
    """Conversations. Mini-batches are whole groups, dealt out in turn."""

    def __init__(self, config: RunConfig, policy: VLM) -> None:
        self.config, self.policy = config.train, policy

    def pack(
        self,
        rollouts: Sequence[Rollout],
        credit: Credit,
        stage: Training,
        *,
        keep_zero: bool,
        parts: int = 1,
        seed: int = 0,
        groups: Sequence[int] = (),
    ) -> list[Batch]:
        shared = self.config.packing != "per-completion" and self.policy.family.shares_prefix
        groups = groups or [r.group for r in rollouts]
        parts = min(parts, len(set(groups))) or 1
        found = []
        for k in range(parts):
            mine = credit
            if parts > 1:
                out = torch.tensor([group % parts != k for group in groups])
                kept = credit.advantages.masked_fill(out if credit.advantages.ndim == 1 else out[:, None], torch.nan)
                mine = Credit(advantages=kept, values_NT=credit.values_NT, returns_NT=credit.returns_NT)
            budget = self.config.micro_batch_tokens
            batch = pack(rollouts, mine, self.policy, shared_prefix=shared, budget=budget, keep_zero=keep_zero)
            found.append(evened(batch, self.policy))
        return found

    def deal(
        self, rollouts: Sequence[Rollout], credit: Credit, stage: RlStage, *, keep_zero: bool, seed: int, groups: Sequence[int]
    ) -> Dealt:
        return self.pack(rollouts, credit, stage, keep_zero=keep_zero, parts=stage.minibatches, groups=groups)

    def measured(
        self, rollouts: Sequence[Rollout], stage: Training, names: frozenset[str], forward: Forward
    ) -> Mapping[str, torch.Tensor]:
        return forward(names)


class TrackPacker:
    """Episodes in simulators. Mini-batches are calls, dealt out at random."""

    def __init__(self, config: RunConfig, policy: ActingPolicy) -> None:
        self.config, self.policy = config.train, policy

    def pack(
        self,
        rollouts: Sequence[Rollout],
        credit: Credit,
        stage: Training,
        *,
        keep_zero: bool,
        parts: int = 1,
        seed: int = 0,
        groups: Sequence[int] = (),
    ) -> list[Batch]:
        counts = self.policy.tokens_per_call([r.track for r in rollouts if r.track is not None and not r.elsewhere])
        budget = max(1, self.config.micro_batch_tokens // counts)
        ratio = _ratio(stage)
        return pack_tracks(rollouts, credit, ratio=ratio, budget=budget, keep_zero=keep_zero, parts=parts, seed=seed)

    def deal(
        self, rollouts: Sequence[Rollout], credit: Credit, stage: RlStage, *, keep_zero: bool, seed: int, groups: Sequence[int]
    ) -> Dealt:
        """Anew for each epoch, where there is something to deal."""

        def dealt(epoch: int) -> list[Batch]:
            own = derive(seed, epoch) if epoch else seed
            return self.pack(rollouts, credit, stage, keep_zero=keep_zero, parts=stage.minibatches, seed=own)

        return dealt if stage.minibatches > 1 else dealt(0)

    def measured(
        self, rollouts: Sequence[Rollout], stage: Training, names: frozenset[str], forward: Forward
    ) -> Mapping[str, torch.Tensor]:
        """Values were given while the episodes went on."""
        ratio, found = _ratio(stage), dict(forward(names - {"values"})) if names - {"values"} else {}
        if "values" not in names:
            return found
        tracks = [r.track for r in rollouts]
        longest = max(size(t, ratio) if t else 0 for t in tracks)
        found["values"] = torch.zeros(len(tracks), longest)
        for n, track in enumerate(tracks):
            if track is not None and track.values_TU is not None:
                values_L = values_of(track.values_TU, track.valid_TK, track.logprobs_TKC.shape[-1], ratio)
                found["values"][n, : len(values_L)] = values_L.cpu()
        found["bootstrap"] = torch.tensor([track.bootstrap if track else 0.0 for track in tracks])
        return found


def packer_of(config: RunConfig, policy: Policy) -> Packer:
    """The packer that belongs to a policy."""
    if isinstance(policy, ActingPolicy):
        return TrackPacker(config, policy)
    assert isinstance(policy, VLM)
    return WordPacker(config, policy)


def ones(rollouts: Sequence[Rollout]) -> Credit:
    """Every target counts the same."""
    return Credit(advantages=torch.ones(len(rollouts)))


def _ratio(stage: Training) -> Ratio:
    return getattr(stage, "ratio", "token")

"""Pack trajectories and their credit into batches of policy calls. The counterpart of
`mmrl.train.update.pack_conversations`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.seeds import derive
from mmrl.api.simulators.layout import Ratio, num_targets, per_target
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import RunConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.batches import ActionMicroBatch, Batch, Credit
from mmrl.train.update.packer import Dealt, PackOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flat:
    """All S calls of the trained episodes, one after the other, each with U places for targets."""

    observation: Observation
    choices: torch.Tensor
    valid_SK: torch.Tensor
    logprobs_SKC: torch.Tensor
    rollout_S: torch.Tensor
    exists_SU: torch.Tensor
    """bool: whether a place has a target."""
    place_SU: torch.Tensor
    advantages_SU: torch.Tensor
    values_SU: torch.Tensor | None
    returns_SU: torch.Tensor | None


def pack_trajectories(rollouts: Sequence[Trajectory], credit: Credit, options: PackOptions, *, budget: int) -> list[Batch]:
    """`options.minibatches` batches of the calls in this rank's trained episodes. The calls of all ranks are shuffled with
    `options.seed`; of each mini-batch a rank takes its own calls. budget: maximal number of calls per pass. Failed episodes
    (credit NaN) are left out."""
    ratio, parts = options.ratio, options.minibatches
    nowhere = credit.advantages.isnan().flatten(1).any(1) if credit.advantages.ndim > 1 else credit.advantages.isnan()
    chosen = [n for n, r in enumerate(rollouts) if r.data is not None and not nowhere[n]]
    known = [(n, track) for n in chosen if (track := rollouts[n].data) is not None]
    lengths = [0] * len(rollouts)
    for n, track in known:
        lengths[n] = num_targets(track, ratio)
    own = [(n, track) for n, track in known if not rollouts[n].is_stub]
    if not own:
        empty = Batch(micro=(), num_tokens=0, num_rollouts=0, lengths_N=torch.tensor(lengths, dtype=torch.long))
        return [empty] * parts
    flat = _flat(own, credit, ratio)
    device = flat.valid_SK.device
    is_own = torch.cat([torch.full((len(t.valid_TK),), not rollouts[n].is_stub) for n, t in known])
    calls, number = len(is_own), is_own.cumsum(0) - 1  # a call's number among this rank's calls
    order = torch.randperm(calls, generator=torch.Generator().manual_seed(options.seed)) if parts > 1 else torch.arange(calls)
    moved_S = (flat.advantages_SU != 0).any(1).cpu()
    lengths_N = torch.tensor(lengths, dtype=torch.long, device=device)
    found = []
    for dealt in order.tensor_split(parts):
        mine = number[dealt[is_own[dealt]]]
        rows = mine if options.keep_zero else mine[moved_S[mine]]
        micro = tuple(_calls(flat, chunk.to(device), ratio) for chunk in rows.split(budget) if len(chunk))
        tokens = int(flat.exists_SU[mine.to(device)].sum())
        trained = len(flat.rollout_S[mine.to(device)].unique())
        found.append(Batch(micro=micro, num_tokens=tokens, num_rollouts=trained, lengths_N=lengths_N))
    return found


def _flat(known: Sequence[tuple[int, TrajectoryData]], credit: Credit, ratio: Ratio) -> _Flat:
    tracks = [track for _, track in known]
    valid_SK = torch.cat([t.valid_TK for t in tracks])
    logprobs_SKC = torch.cat([t.logprobs_TKC for t in tracks])
    device = valid_SK.device
    exists_SU = _places(valid_SK, logprobs_SKC.shape[-1], ratio)

    def spread(values: torch.Tensor) -> torch.Tensor:
        """The values of each rollout's targets in their places, [S, U]. values: [N] or [N, T]."""
        rows = []
        for n, track in known:
            length = num_targets(track, ratio)
            rows.append((values[n].expand(length) if values.ndim == 1 else values[n, :length]).float())
        return torch.zeros(exists_SU.shape, device=device).masked_scatter(exists_SU, torch.cat(rows).to(device))

    counts = torch.tensor([len(t.valid_TK) for t in tracks])
    numbers = torch.tensor([n for n, _ in known]).repeat_interleave(counts)
    place = torch.cat([torch.arange(num_targets(t, ratio)) for t in tracks]).to(device)
    states = [t.state for t in tracks if t.state is not None]
    cameras = tracks[0].images
    return _Flat(
        observation=Observation(
            images={camera: torch.cat([t.images[camera][:-1] for t in tracks]) for camera in cameras},
            state=torch.cat([s[:-1] for s in states]) if states else None,
            instructions=[t.instruction for t in tracks for _ in range(len(t.valid_TK))],
        ),
        choices=torch.cat([t.choices for t in tracks]),
        valid_SK=valid_SK,
        logprobs_SKC=logprobs_SKC,
        rollout_S=numbers.to(device),
        exists_SU=exists_SU,
        place_SU=torch.zeros(exists_SU.shape, dtype=torch.long, device=device).masked_scatter(exists_SU, place),
        advantages_SU=spread(credit.advantages),
        values_SU=None if credit.values_NT is None else spread(credit.values_NT),
        returns_SU=None if credit.returns_NT is None else spread(credit.returns_NT),
    )


def _places(valid_SK: torch.Tensor, choices: int, ratio: Ratio) -> torch.Tensor:
    """bool [S, U]: whether a place of a call has a target."""
    if ratio == "chunk":
        return torch.ones(len(valid_SK), 1, dtype=torch.bool, device=valid_SK.device)
    return valid_SK if ratio == "action" else valid_SK.repeat_interleave(choices, 1)


def _calls(flat: _Flat, rows: torch.Tensor, ratio: Ratio) -> ActionMicroBatch:
    exists = flat.exists_SU[rows]
    valid = flat.valid_SK[rows]

    def of(x_SU: torch.Tensor) -> torch.Tensor:
        return x_SU[rows][exists]

    return ActionMicroBatch(
        observation=flat.observation.rows(rows),
        choices=flat.choices[rows],
        slots=flat.logprobs_SKC.shape[-1],
        valid_SK=valid,
        ratio=ratio,
        sampler_logprobs_L=per_target(flat.logprobs_SKC[rows], valid, ratio),
        advantages_L=of(flat.advantages_SU),
        rollout_L=flat.rollout_S[rows][:, None].expand(exists.shape)[exists],
        place_L=of(flat.place_SU),
        off_policy_L=torch.zeros(int(exists.sum()), dtype=torch.bool, device=exists.device),
        values_L=None if flat.values_SU is None else of(flat.values_SU),
        returns_L=None if flat.returns_SU is None else of(flat.returns_SU),
    )


class TrajectoryPacker:
    """Packs trajectories. Mini-batches consist of calls, assigned at random."""

    remark = layout = ""

    def __init__(self, config: RunConfig, policy: ActingPolicy) -> None:
        self.config, self.policy = config.train, policy

    def pack(self, rollouts: Sequence[Trajectory], credit: Credit, options: PackOptions) -> list[Batch]:
        counts = self.policy.tokens_per_call([r.data for r in rollouts if r.data is not None and not r.is_stub])
        return pack_trajectories(rollouts, credit, options, budget=max(1, self.config.micro_batch_tokens // counts))

    def deal(self, rollouts: Sequence[Trajectory], credit: Credit, options: PackOptions) -> Dealt:
        """With several mini-batches, calls are assigned anew in each epoch."""

        def dealt(epoch: int) -> list[Batch]:
            return self.pack(rollouts, credit, replace(options, seed=derive(options.seed, epoch)) if epoch else options)

        return dealt if options.minibatches > 1 else dealt(0)

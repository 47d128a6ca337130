"""Rollouts and their advantages -> Batch. A group is packed as `[prompt][completion 1]..[completion G]`, so the prompt and its
images are computed once; a model that can't share a prompt gets one `[prompt][completion]` a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mmrl.policies.vlm import VLM, PromptInputs, concatenate
from mmrl.types import Batch, MicroBatch, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One prompt and the completions packed behind it."""

    inputs: PromptInputs
    members: list[int]
    """Indices of the rollouts."""
    length: int


def pack(
    rollouts: Sequence[Rollout],
    advantages_N: torch.Tensor,
    policy: VLM,
    *,
    shared_prefix: bool,
    budget: int,
    keep_zero: bool = False,
) -> Batch:
    """Flat tensors of every trained token.

    advantages_N: float32, NaN for rollouts that leave the batch (failed scores). budget: padded tokens a micro-batch may hold.
    keep_zero: also compute rollouts whose advantage is zero; without a KL term their gradient is zero, so they are only counted.

    A completion that holds a banned id is refused: its forward pass would mistake it for an image.
    """
    trained = [n for n, r in enumerate(rollouts) if not bool(advantages_N[n].isnan()) and r.turns[-1].token_ids]
    for n in trained:
        turn = rollouts[n].turns[-1]
        if not policy.banned.isdisjoint(turn.token_ids):
            raise ValueError(f"rollout {n} of prompt {rollouts[n].prompt.id!r} holds a vision id: the sampler must suppress them")
        if turn.observed_ids != tuple(rollouts[n].inputs.ids.tolist()):
            raise ValueError(
                f"rollout {n} of prompt {rollouts[n].prompt.id!r}: the sampler read other prompt ids than the learner would"
            )
    lengths_N = torch.zeros(len(rollouts), dtype=torch.long)
    lengths_N[trained] = torch.tensor([len(rollouts[n].turns[-1].token_ids) for n in trained], dtype=torch.long)
    computed = [n for n in trained if keep_zero or advantages_N[n] != 0]
    rows = sorted(_rows(rollouts, computed, shared_prefix, budget), key=lambda r: r.length)
    micro = tuple(_micro(chunk, rollouts, advantages_N, policy) for chunk in _fill(rows, budget))
    return Batch(micro=micro, num_tokens=int(lengths_N.sum()), num_rollouts=len(trained), lengths_N=lengths_N.to(policy.device))


def _rows(rollouts: Sequence[Rollout], computed: Sequence[int], shared_prefix: bool, budget: int) -> Iterator[_Row]:
    groups: dict[int, list[int]] = {}
    for n in computed:
        groups.setdefault(rollouts[n].group if shared_prefix else -1 - n, []).append(n)
    for members in groups.values():
        inputs = rollouts[members[0]].inputs
        row = _Row(inputs=inputs, members=[], length=len(inputs.ids))
        for n in members:
            grown = row.length + len(rollouts[n].turns[-1].token_ids)
            if row.members and grown > budget:  # a group too long for one row repeats its prompt
                yield row
                row = _Row(inputs=inputs, members=[], length=len(inputs.ids))
                grown = row.length + len(rollouts[n].turns[-1].token_ids)
            row = _Row(inputs=inputs, members=[*row.members, n], length=grown)
        yield row


def _fill(rows: list[_Row], budget: int) -> Iterator[list[_Row]]:
    """Rows of like length together, each micro-batch within the budget after padding (one row may exceed it alone)."""
    chunk: list[_Row] = []
    for row in rows:  # sorted by length, so the newest is the longest
        if chunk and ((len(chunk) + 1) * row.length > budget or not _fit(chunk, row)):
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


def _fit(rows: Sequence[_Row], row: _Row) -> bool:
    """The row's media can be concatenated with those of the others: tiles and padding differ between some families' images."""
    known = {k: v.shape[1:] for r in rows for k, v in r.inputs.media.items()}
    return all(known.get(k, v.shape[1:]) == v.shape[1:] for k, v in row.inputs.media.items())


def _micro(rows: list[_Row], rollouts: Sequence[Rollout], advantages_N: torch.Tensor, policy: VLM) -> MicroBatch:
    device = policy.device
    B, S = len(rows), max(r.length for r in rows)
    ids = torch.zeros(B, S, dtype=torch.long)
    segment = torch.full((B, S), -1, dtype=torch.long)
    axes = 0 if rows[0].inputs.positions is None else rows[0].inputs.positions.shape[0]
    positions = torch.zeros(axes, B, S, dtype=torch.long)
    types = {k: torch.full((B, S), policy.family.completion_type, dtype=v.dtype) for k, v in rows[0].inputs.token_types.items()}
    source, target, sampled, advantage, owner = [], [], [], [], []
    for b, row in enumerate(rows):
        prompt = len(row.inputs.ids)
        ids[b, :prompt], segment[b, :prompt] = row.inputs.ids, 0
        if row.inputs.positions is not None:
            positions[:, b, :prompt] = row.inputs.positions
        for key, values in row.inputs.token_types.items():
            types[key][b, :prompt] = values
        start = prompt
        for g, n in enumerate(row.members, 1):
            turn = rollouts[n].turns[-1]
            end = start + len(turn.token_ids)
            completion = torch.tensor(turn.token_ids)
            ids[b, start:end], segment[b, start:end] = completion, g
            positions[:, b, start:end] = torch.arange(end - start) + row.inputs.next_position
            # the last token of the prompt predicts the first of every completion
            source.append(b * S + torch.cat([torch.tensor([prompt - 1]), torch.arange(start, end - 1)]))
            target.append(completion)
            sampled.append(torch.tensor(turn.logprobs, dtype=torch.float32))
            advantage.append(advantages_N[n].float().expand(end - start))
            owner.append(torch.full((end - start,), n))
            start = end
    media = concatenate([m for r in rows for m in [r.inputs.media]], device) | {k: v.to(device) for k, v in types.items()}
    flat = [torch.cat(x).to(device) for x in (source, target, sampled, advantage, owner)]
    return MicroBatch(
        ids_BS=ids.to(device),
        segment_BS=segment.to(device),
        positions=positions.to(device) if axes else None,
        media=media,
        source_L=flat[0],
        target_L=flat[1],
        sampler_logprobs_L=flat[2],
        advantages_L=flat[3],
        rollout_L=flat[4],
    )

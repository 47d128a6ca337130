"""Pack conversations and their credit into batches. A group is packed as `[prompt][completion 1]..[completion G]`, so the prompt
and its images are computed once; a model that can't share a prompt gets one `[prompt][completion]` per row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.transfer import upload
from mmrl.compute import ranks
from mmrl.compute.teams import Team
from mmrl.config.sections import RunConfig
from mmrl.policies.batches import Batch, Credit, MicroBatch
from mmrl.policies.vlm.prompt_inputs import SOUNDS, PromptInputs, concatenate
from mmrl.policies.vlm.routes import UNKNOWN, Routes
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.packer import Dealt, PackOptions
from mmrl.train.update.prefetch import Prefetcher
from mmrl.train.update.share_rows import own_targets, share_rows

FLAT: dict[str, type[np.generic]] = {
    "source_L": np.int64,
    "target_L": np.int64,
    "sampler_logprobs_L": np.float32,
    "advantages_L": np.float32,
    "rollout_L": np.int64,
    "place_L": np.int64,
    "off_policy_L": np.bool_,
    "final_R": np.int64,
    "final_rollout_R": np.int64,
}
"""Name -> dtype of the flat arrays of trained tokens in every micro-batch. They are NumPy's until all rows are known: a tensor
operation costs ten times as much on the few tokens of a completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row of a micro-batch: one prompt and its completions."""

    inputs: PromptInputs
    members: list[int]
    """Indices of the rollouts."""
    length: int


def pack(
    rollouts: Sequence[Conversation],
    credit: Credit,
    policy: VLM,
    *,
    shared_prefix: bool,
    budget: int,
    keep_zero: bool = False,
    team: Team | None = None,
    prefetcher: Prefetcher | None = None,
) -> Batch:
    """Pack all trained tokens of this rank into a batch, or those of its team.

    budget: maximal number of tokens per micro-batch, with padding.
    keep_zero: also compute rollouts whose advantage is zero everywhere; without a KL term, a critic or an entropy bonus their
    gradient is zero, so they are only counted.
    team: the ranks that compute rows together; all of them call it together.
    prefetcher: of the batches that are passed over in turn with this one.

    Raises ValueError for a completion with a banned id, which the forward pass would take for an image, and for a prompt that is
    shared by a model that can't do that: completions would see each other.
    """
    if shared_prefix and not policy.family.shares_prefix:
        raise ValueError(f"this model's completions can't share a prompt: {policy.family.capabilities.why_not}")
    advantages = _float32(credit.advantages).reshape(len(rollouts), -1)
    nowhere, moved = np.isnan(advantages).any(1), (advantages != 0).any(1)
    trained = [n for n, r in enumerate(rollouts) if r.length and not nowhere[n] and not r.is_stub]
    for n in trained:
        _check(rollouts[n], policy)
    lengths_N = torch.tensor([0 if nowhere[n] else r.length for n, r in enumerate(rollouts)], dtype=torch.long)
    computed = [n for n in trained if keep_zero or moved[n]]
    rows = sorted(_rows(rollouts, computed, shared_prefix, budget), key=lambda r: r.length)
    micro = tuple(
        _micro(_seeing(chunk, rollouts, policy), rollouts, credit, policy, team) for chunk in _fill(rows, rollouts, budget)
    )
    tokens = sum(rollouts[n].length for n in trained)
    reached = _reached(rows, rollouts)
    whole = {"lengths_N": lengths_N, "groups_N": torch.tensor([r.group for r in rollouts], dtype=torch.long)}
    whole["credits_N"] = torch.tensor([_mean(advantages[n], r.length) for n, r in enumerate(rollouts)], dtype=torch.float32)
    found = Batch(
        micro=micro,
        num_tokens=tokens,
        num_rollouts=len(trained),
        **upload(whole, policy.device),
        looks="pictures" in reached or (bool(reached) and not policy.family.sees),  # whose projector is for sounds
        hears="sounds" in reached,
    )
    return _prefetched(found if team is None else share_rows(found, team, policy), prefetcher or prefetcher_of(policy))


def prefetcher_of(policy: VLM) -> Prefetcher:
    """A new one."""
    return Prefetcher(policy.device, policy.family.on_host)


def _prefetched(batch: Batch, prefetcher: Prefetcher) -> Batch:
    return replace(batch, micro=tuple(replace(micro, media=prefetcher.add(micro.media)) for micro in batch.micro))


def _mean(advantages: np.ndarray, length: int) -> float:
    """The mean credit of a rollout. advantages: one, or one for each token and 0 after them."""
    return float(advantages[0] if len(advantages) == 1 else advantages[:length].mean()) if length else math.nan


def pad_passes(batch: Batch, policy: VLM, team: Team | None = None, prefetcher: Prefetcher | None = None) -> Batch:
    """With sharded weights, the batch with empty passes up to the largest number of passes of any rank, as every rank takes part
    in all passes."""
    if policy.root is None:
        return batch
    nothing = Credit(advantages=torch.zeros(0))
    more = ranks.all_reduce_max(len(batch.micro)) - len(batch.micro)
    if not more:
        return batch
    blank = _micro([_blank(policy)], [], nothing, policy, team)
    blank = blank if team is None else own_targets(blank, 0, team, policy)
    blank = replace(blank, media=(prefetcher or prefetcher_of(policy)).add(blank.media))
    return replace(batch, micro=(*batch.micro, *[blank] * more))


def _seeing(rows: list[_Row], rollouts: Sequence[Conversation], policy: VLM) -> list[_Row]:
    """With sharded weights, the rows with at least one image, and one sound for a model that hears: all ranks must reduce the
    gradients of the same weights, those of the towers too."""
    whole = policy.root is None or _reached(rows, rollouts) >= _reached([_blank(policy)], [])
    return rows if whole else [_blank(policy), *rows]


def _reached(rows: Sequence[_Row], rollouts: Sequence[Conversation]) -> set[str]:
    """What rows have in their prompts or later turns: `pictures`, `sounds`."""
    return {"sounds" if name in SOUNDS else "pictures" for row in rows for media in _media(row, rollouts) for name in media}


def _blank(policy: VLM) -> _Row:
    return _Row(inputs=policy.blank, members=[], length=len(policy.blank.ids))


def _check(rollout: Conversation, policy: VLM) -> None:
    where = f"a rollout of prompt {rollout.prompt.id!r}"
    if rollout.turns[0].observed_ids != tuple(rollout.inputs.ids.tolist()):
        raise ValueError(f"{where}: the sampler used other prompt ids than the learner")
    for turn in rollout.turns:
        if not policy.banned.isdisjoint(turn.token_ids):
            raise ValueError(f"{where} contains a vision id: the sampler must suppress them")
    for turn in rollout.turns[1:] if rollout.final_inputs is None else ():
        if not policy.banned.isdisjoint(turn.observed_ids):
            raise ValueError(f"{where} observed an image in a later turn but has no final_inputs")


def _tokens(rollout: Conversation) -> tuple[list[int], list[bool]]:
    """(ids after the prompt, whether each was sampled)."""
    ids: list[int] = []
    sampled: list[bool] = []
    for number, turn in enumerate(rollout.turns):
        observed = turn.observed_ids if number else ()
        ids += [*observed, *turn.token_ids]
        sampled += [False] * len(observed) + [True] * len(turn.token_ids)
    return ids, sampled


def _rows(rollouts: Sequence[Conversation], computed: Sequence[int], shared_prefix: bool, budget: int) -> Iterator[_Row]:
    groups: dict[tuple[int, int], list[int]] = {}
    for n in computed:  # a group may have several inputs, such as one per condition
        key = (rollouts[n].group, id(rollouts[n].inputs) if shared_prefix and _can_share(rollouts[n]) else n)
        groups.setdefault(key, []).append(n)
    for members in groups.values():
        inputs = rollouts[members[0]].inputs
        row = _Row(inputs=inputs, members=[], length=len(inputs.ids))
        for n in members:
            size = sum(len(t.token_ids) + (len(t.observed_ids) if k else 0) for k, t in enumerate(rollouts[n].turns))
            if row.members and row.length + size > budget:  # the group is too long for one row: repeat its prompt
                yield row
                row = _Row(inputs=inputs, members=[], length=len(inputs.ids))
            row = _Row(inputs=inputs, members=[*row.members, n], length=row.length + size)
        yield row


def _can_share(rollout: Conversation) -> bool:
    """Whether its row may hold other completions. A model that reads token types, by which pictures see themselves, takes them by
    a token's index in a row of its own; pictures of later turns would have other tokens' types."""
    final = rollout.final_inputs
    return not (final and final.token_types and any(bool(v[len(rollout.inputs.ids) :].any()) for v in final.token_types.values()))


def _fill(rows: list[_Row], rollouts: Sequence[Conversation], budget: int) -> Iterator[list[_Row]]:
    """Split rows into micro-batches of similar length, each within the budget after padding; a single row may exceed it."""
    chunk: list[_Row] = []
    for row in rows:  # sorted by length, so the last is the longest
        if chunk and ((len(chunk) + 1) * row.length > budget or not _fit(chunk, row, rollouts)):
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


def _fit(rows: Sequence[_Row], row: _Row, rollouts: Sequence[Conversation]) -> bool:
    """Whether the row's pictures can be joined with the others' without padding: some families' differ in tiles and size."""
    known = {k: v.shape[1:] for r in rows for m in _media(r, rollouts) for k, v in m.items() if k not in SOUNDS}
    return all(known.get(k, v.shape[1:]) == v.shape[1:] for m in _media(row, rollouts) for k, v in m.items())


def _media(row: _Row, rollouts: Sequence[Conversation]) -> list[Mapping[str, torch.Tensor]]:
    """The media of a row in the order of its tokens: the prompt's, then those of each member's later turns."""
    if len(row.members) == 1 and (final := rollouts[row.members[0]].final_inputs):
        return [final.media]
    later = [rollouts[n].final_inputs for n in row.members]
    own = row.inputs.media
    return [own, *({k: v[len(own[k]) if k in own else 0 :] for k, v in final.media.items()} for final in later if final)]


def _pictures(row: _Row, rollouts: Sequence[Conversation]) -> list[int]:
    """The numbers of a row's pictures, in the order of `_media`."""
    later = [rollouts[n].final_inputs for n in row.members]
    if len(row.members) == 1 and (final := later[0]):
        return [*final.pictures]
    own = row.inputs.pictures
    return [*own, *(number for final in later if final for number in final.pictures[len(own) :])]


def _token_types(row: _Row, rollouts: Sequence[Conversation]) -> Mapping[str, torch.Tensor]:
    """Types of the first tokens of a row: of its prompt, or of a conversation up to its last turn, with the pictures in it."""
    final = rollouts[row.members[0]].final_inputs if len(row.members) == 1 else None
    return (final or row.inputs).token_types


def _micro(
    rows: list[_Row], rollouts: Sequence[Conversation], credit: Credit, policy: VLM, team: Team | None = None
) -> MicroBatch:
    """A micro-batch with its media on the host. team: it will compute the rows together. Their length is then a multiple of its
    size, and all of them stays on the host."""
    B, S = len(rows), max(r.length for r in rows)
    S = S if team is None else -(-S // team.size) * team.size
    # padding is no pad token, whose embedding may be zero: a norm by the root of squares (Gemma 3n's) has no gradient there
    ids = np.full((B, S), policy.end_id, np.int64)
    segment = np.full((B, S), -1, np.int64)
    first = rows[0].inputs.positions
    axes, dtype = (0, np.int64) if first is None else (len(first), first.numpy().dtype)
    positions = np.zeros((axes, B, S), dtype)
    given = [_token_types(row, rollouts) for row in rows]
    dtypes = {k: v.dtype for types in given for k, v in types.items()}
    types = {k: torch.full((B, S), policy.family.completion_type, dtype=dtype) for k, dtype in dtypes.items()}
    spread = {"advantages_L": _float32(credit.advantages)}
    if credit.values_NT is not None and credit.returns_NT is not None:
        spread |= {"values_L": _float32(credit.values_NT), "returns_L": _float32(credit.returns_NT)}
    flat = {name: [np.empty(0, FLAT.get(name, np.float32))] for name in FLAT | spread}

    for b, row in enumerate(rows):
        start = prompt = len(row.inputs.ids)
        ids[b, :prompt], segment[b, :prompt] = row.inputs.ids, 0
        if row.inputs.positions is not None:
            positions[:, b, :prompt] = row.inputs.positions
        for key, values in given[b].items():
            types[key][b, : len(values)] = values
        for g, n in enumerate(row.members, 1):
            rollout = rollouts[n]
            following, is_sampled = _tokens(rollout)
            end, sampled, length = start + len(following), np.flatnonzero(is_sampled), rollout.length
            ids[b, start:end], segment[b, start:end] = following, g
            positions[:, b, start:end] = _positions(rollout, end - start)
            before = np.arange(start - 1, end - 1)
            before[0] = prompt - 1  # the last token of the prompt predicts the first of every completion
            pieces = {
                "source_L": b * S + before[sampled],
                "target_L": ids[b, start + sampled],
                "sampler_logprobs_L": np.array([p for t in rollout.turns for p in t.logprobs], np.float32),
                "rollout_L": np.full(length, n),
                "place_L": np.arange(length),
                "off_policy_L": np.full(length, rollout.off_policy),
                "final_R": np.array([b * S + end - 1]),
                "final_rollout_R": np.array([n]),
            } | {name: np.broadcast_to(v[n], length) if v.ndim == 1 else v[n, :length] for name, v in spread.items()}
            for name, piece in pieces.items():
                flat[name].append(piece)
            start = end
    media = concatenate([m for row in rows for m in _media(row, rollouts)]) | types
    own = {"ids_BS": ids, "segment_BS": segment, "positions": positions}
    own |= {name: np.concatenate(pieces) for name, pieces in flat.items()}
    own_routes = {"routes_MTK": found} if (found := _routes(rows, rollouts, B, S)) is not None else {}
    device = policy.device if team is None else "cpu"
    inputs: dict[str, Any] = upload({k: torch.from_numpy(v) for k, v in own.items()}, device)
    pictures = tuple(number for row in rows for number in _pictures(row, rollouts))
    return MicroBatch(media=media, pictures=pictures, **inputs | own_routes | ({} if axes else {"positions": None}))


def _routes(rows: Sequence[_Row], rollouts: Sequence[Conversation], B: int, S: int) -> torch.Tensor | None:
    """`MicroBatch.routes_MTK`; None if nothing is known."""
    known: list[Routes] = [r for row in rows for n in row.members if (r := rollouts[n].routes)]
    if not known:
        return None
    M, K = known[0].prompt_PMK.shape[1:]
    routes_BSMK = torch.full((B, S, M, K), UNKNOWN, dtype=torch.int16)
    for b, row in enumerate(rows):
        start = len(row.inputs.ids)
        for n in row.members:
            routes: Routes | None = rollouts[n].routes
            if routes:
                routes_BSMK[b, : len(row.inputs.ids)] = routes.prompt_PMK
                routes_BSMK[b, start : start + len(routes.after_AMK)] = routes.after_AMK
            start += len(_tokens(rollouts[n])[0])
    return routes_BSMK.flatten(0, 1).transpose(0, 1).contiguous()


def _positions(rollout: Conversation, length: int) -> np.ndarray:
    """Rotary positions of the tokens after the prompt, [axes, length] or [length], in the type of the prompt's."""
    first, later = rollout.inputs, rollout.final_inputs
    if later is None or later.positions is None:
        return np.arange(length) + first.next_position
    known = later.positions[:, len(first.ids) :].numpy()
    steps = np.arange(length - known.shape[1]) + later.next_position
    return np.concatenate([known, np.broadcast_to(steps, (len(known), len(steps)))], 1)


def _float32(values: torch.Tensor) -> np.ndarray:
    """Values of each rollout [N] or of its trained tokens [N, T]."""
    return values.detach().float().cpu().numpy()


class ConversationPacker:
    """Packs conversations. Mini-batches consist of whole groups, assigned in turn."""

    def __init__(self, config: RunConfig, policy: VLM) -> None:
        """Raises UserError if the run file sets shared prompts or shared rows and the policy can't share them. Call it on all
        ranks."""
        self.policy, self.budget = policy, config.train.micro_batch_tokens
        self.team = Team.of(config.compute.sequence_parallel)
        if self.team is not None:
            policy.family.share_rows(self.team.size)
        self.shared = config.train.packing != "per-completion" and policy.family.shares_prefix
        slower = policy.family.capabilities.slower_because
        self.remark = f"attention is exact, but slower than it could be ({slower})" if slower else ""
        if not policy.family.shares_prefix:
            self.remark = _unshared(config.train.packing, policy)
        self.layout = policy.family.capabilities.described(policy.model.config.model_type) if self.shared else ""

    def pack(self, rollouts: Sequence[Conversation], credit: Credit, options: PackOptions) -> list[Batch]:
        groups = [r.group for r in rollouts]
        parts = min(options.minibatches, len(set(groups))) or 1
        found, prefetcher = [], prefetcher_of(self.policy)
        for k in range(parts):
            mine = credit
            if parts > 1:
                out = torch.tensor([group % parts != k for group in groups])
                kept = credit.advantages.masked_fill(out if credit.advantages.ndim == 1 else out[:, None], torch.nan)
                mine = Credit(advantages=kept, values_NT=credit.values_NT, returns_NT=credit.returns_NT)
            given: dict[str, Any] = {"team": self.team, "prefetcher": prefetcher}
            whole: dict[str, Any] = {"shared_prefix": self.shared, "budget": self.budget, "keep_zero": options.keep_zero}
            found.append(pad_passes(pack(rollouts, mine, self.policy, **whole, **given), self.policy, **given))
        return found

    def deal(self, rollouts: Sequence[Conversation], credit: Credit, options: PackOptions) -> Dealt:
        return self.pack(rollouts, credit, options)


def _unshared(packing: str, policy: VLM) -> str:
    """The remark about a model that can't share a prompt. Raises UserError if the run file sets "shared-prefix"."""
    family, kind = policy.family, policy.model.config.model_type
    if packing == "shared-prefix":
        why = family.capabilities.why_not
        raise UserError(f'train.packing = "shared-prefix", but a {kind} model can\'t share a prompt ({why}): use "auto"')
    if packing == "per-completion":
        return ""
    return (
        f"{family.capabilities.described(kind)}, which is exact but several times slower "
        '(set train.packing = "per-completion" to hide this note)'
    )

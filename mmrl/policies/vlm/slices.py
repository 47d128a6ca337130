"""Passes of a language model over rows that a team of ranks shares: Ulysses sequence parallelism (Jacobs et al. 2023, DeepSpeed
Ulysses, section 3).

Each rank's language model is given its slice of the tokens, with their own positions, and computes embeddings, norms and MLPs of
these alone. Attention gets its share of the heads for the whole rows, by an all-to-all before it and one behind it, so the mask
is that of whole rows, in any form. Gradients of weights are those of a rank's slice: their sum over ranks is that of whole rows.

B rows of S tokens, n ranks, H heads of queries, N heads of keys.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch

from mmrl.compute.teams import Team
from mmrl.policies.layers import CACHES

WHOLE = {*CACHES, "visual_pos_masks", "deepstack_visual_embeds", "use_cache", "return_dict", "output_attentions"}
"""Arguments of language models that stay as they are; what is added to pictures is taken apart where it is added."""
_PASS: ContextVar[Team | None] = ContextVar("pass", default=None)
_SLICED: ContextVar[Team | None] = ContextVar("sliced", default=None)


def pass_team() -> Team | None:
    """Who computes the forward pass that is running; None: this rank alone."""
    return _PASS.get()


def slicing_team() -> Team | None:
    """Among whom the tokens are divided, inside the language model; None outside of it, and in passes that aren't shared."""
    return _SLICED.get()


@contextlib.contextmanager
def shared_pass(team: Team, decoder: torch.nn.Module) -> Iterator[None]:
    """Inside, the team computes forward passes of whole rows together, and the decoder returns this rank's slice."""
    entered: list[Any] = []

    def enter(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        entered.append(_SLICED.set(team))
        return args, sliced(team, given)

    def leave(module: Any, args: Any, output: Any) -> None:
        _SLICED.reset(entered.pop())

    token = _PASS.set(team)
    hooks = [decoder.register_forward_pre_hook(enter, with_kwargs=True), decoder.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for one in entered:  # the decoder failed
            _SLICED.reset(one)
        _PASS.reset(token)


def sliced(team: Team, given: Mapping[str, Any]) -> dict[str, Any]:
    """A language model's arguments for this rank's slice. Masks of all pairs of tokens stay whole. Raises NotImplementedError for
    arguments of which it isn't known how they go by tokens."""
    found = dict(given)
    for name, value in given.items():
        if name in ("input_ids", "inputs_embeds") and value is not None:
            found[name] = team.own(value, 1).clone()  # a view would keep the embeddings of whole rows for the backward pass
        elif name == "position_ids" and value is not None:
            found[name] = team.own(value, -1)
        elif name == "attention_mask" and isinstance(value, torch.Tensor) and value.ndim == 2:
            found[name] = team.own(value, 1)
        elif name != "attention_mask" and name not in WHOLE and isinstance(value, torch.Tensor):
            raise NotImplementedError(f"rows can't be shared by ranks in a model whose language model takes {name}")
    return found


# -- attention ----------------------------------------------------------------------------------------------------------------


def by_heads(team: Team, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[B, H, S / n, D] of a slice -> [B, H / n, S, D] of whole rows; keys and values alike. If there are fewer heads of keys than
    ranks, each is given to several."""
    copies = max(1, team.size // key.shape[1])
    key, value = (x.repeat_interleave(copies, 1) if copies > 1 else x for x in (key, value))
    return tuple(team.swap(x, split=1, join=2) for x in (query, key, value))


def by_tokens(team: Team, output: torch.Tensor) -> torch.Tensor:
    """[B, S, H / n, D] of whole rows -> [B, S / n, H, D] of a slice."""
    return team.swap(output, split=1, join=2)


def share_of(module: Any, query: torch.Tensor, key: torch.Tensor) -> Any:
    """What transformers' attention reads of its layer, for a rank's share of the heads."""
    return SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1], is_causal=getattr(module, "is_causal", True))


def indivisible(size: int, heads: int, key_heads: int) -> str:
    """Why attention with so many heads can't be divided among a team; empty if it can be."""
    if heads % size:
        return f"it has {heads} heads of attention"
    if key_heads % size and size % key_heads:
        return f"it has {key_heads} heads of keys"
    return ""


# -- pictures -----------------------------------------------------------------------------------------------------------------


def vectors_of_slice(team: Team, mask_BS: torch.Tensor, vectors_NH: torch.Tensor) -> torch.Tensor:
    """[B, S / n, H]: the vectors of this rank's tokens, of which those that the mask names have one each, and others zeros."""
    index_BS = (mask_BS.flatten().cumsum(0) - 1).clamp_min(0).view_as(mask_BS)
    own_BSH = vectors_NH[team.own(index_BS, 1)]
    return own_BSH * team.own(mask_BS, 1)[..., None].to(own_BSH.dtype)


def shares(sizes: Sequence[int], count: int) -> list[range]:
    """Divide things of these sizes, in their order, into so many neighbouring parts of about one size; some may be empty."""
    starts, total = accumulate(sizes, initial=0), sum(sizes)
    parts = [(2 * start + size) * count // (2 * total) for start, size in zip(starts, sizes, strict=False)]
    return [range(bisect_left(parts, k), bisect_left(parts, k + 1)) for k in range(count)]


def joined(team: Team, own: torch.Tensor, start: int, length: int) -> torch.Tensor:
    """[length, ...]: the rows of all members. own: this rank's, which begin at `start`."""
    before, after = own.new_zeros(start, *own.shape[1:]), own.new_zeros(length - start - len(own), *own.shape[1:])
    return team.sum(torch.cat([before, own, after]))


def at(team: Team, own_BSH: torch.Tensor, kept_K: torch.Tensor) -> torch.Tensor:
    """[K, H]: hidden states of whole rows at flat positions. own_BSH: this rank's slice [B, S / n, H] of them."""
    length = own_BSH.shape[1]
    row_K, token_K = kept_K // (length * team.size), kept_K % (length * team.size) - team.place * length
    mine_K = (token_K >= 0) & (token_K < length)
    found_KH = own_BSH.flatten(0, 1).index_select(0, row_K * length + token_K.clamp(0, length - 1))
    return team.sum(found_KH.where(mine_K[:, None], 0.0))

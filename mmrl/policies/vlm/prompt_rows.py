"""Prompts as the rows of a pass, for every policy that has a vision-language model: the sampler's, and those that act.

N rows of S tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch

from mmrl.api.transfer import upload
from mmrl.policies.vlm.prompt_inputs import PromptInputs, concatenate
from mmrl.policies.vlm.vision_cache import showing

if TYPE_CHECKING:
    from mmrl.policies.vlm.families import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRows:
    """Prompts on the device of a model, without their media."""

    ids_NS: torch.Tensor
    """int64; 0 for padding."""
    mask_NS: torch.Tensor | None
    """int64: 0 for padding, 1 for tokens; None where no row has padding."""
    positions: torch.Tensor | None
    """[axes, N, S]; None if the model computes them."""
    token_types: Mapping[str, torch.Tensor]
    """[N, S] each, see `PromptInputs`; 0 for the tokens of a prompt without types."""
    beside: Mapping[str, torch.Tensor]
    """What came with them in one copy."""


def rows_of(
    inputs: Sequence[PromptInputs],
    device: torch.device,
    side: Literal["left", "right"] = "left",
    beside: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> PromptRows:
    """Prompts of several lengths, padded on one side. A prompt that stands in several rows is laid out once. beside: tensors of
    the host that go to the device in the same copy."""
    known = {id(one): one for one in inputs}
    lengths = [len(one.ids) for one in known.values()]
    longest = max(lengths)
    places = [slice(longest - length, longest) if side == "left" else slice(length) for length in lengths]
    number = {key: row for row, key in enumerate(known)}
    row_N = torch.tensor([number[id(one)] for one in inputs])

    def filled(own: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """[N, ..., S] of what the different prompts have, [..., tokens] each."""
        like = next(x for x in own if x is not None)
        rows = like.new_zeros(len(own), *like.shape[:-1], longest)
        for row, x, place in zip(rows, own, places, strict=True):
            if x is not None:
                row[..., place] = x
        return rows[row_N]

    prompts = list(known.values())
    made = {"ids_NS": filled([one.ids for one in prompts])}
    if prompts[0].positions is not None:
        made["positions"] = filled([one.positions for one in prompts]).transpose(0, 1).contiguous()
    if min(lengths) < longest:
        made["mask_NS"] = filled([torch.ones_like(one.ids) for one in prompts])
    names = sorted({name for one in prompts for name in one.token_types})
    types = {name: filled([one.token_types.get(name) for one in prompts]) for name in names}
    there = upload({**made, **types, **beside}, device)
    return PromptRows(
        ids_NS=there["ids_NS"],
        mask_NS=there.get("mask_NS"),
        positions=there.get("positions"),
        token_types={name: there[name] for name in types},
        beside={name: there[name] for name in beside},
    )


def read_prompts(
    family: Family, inputs: Sequence[PromptInputs], device: torch.device, cache: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Fill a cache with prompts and their media; returns (logits [N, V] that follow them, `PromptRows.mask_NS`)."""
    rows = rows_of(inputs, device)
    media = upload(concatenate([one.media for one in inputs]), device, family.on_host)
    with showing(media, [number for one in inputs for number in one.pictures]):
        return family.step(rows.ids_NS, rows.mask_NS, rows.positions, {**media, **rows.token_types}, cache), rows.mask_NS


def padding_only(mask: torch.Tensor) -> torch.Tensor | None:
    """A mask [N, S], or None if there is no padding in it."""
    return None if bool(mask.all()) else mask

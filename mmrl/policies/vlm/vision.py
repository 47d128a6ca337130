"""Parts of Qwen vision towers, computed faster with the same result.

transformers' vision towers loop over images (and windows) unless a variable-length kernel is set. The attention here needs no
extra package: a GPU has a kernel for all sequences, see `varlen`; elsewhere, sequences of equal length are stacked and go through
one scaled-dot-product call. Patches are embedded by a convolution whose stride is its kernel, which is a matrix product, and that
is several times faster. What follows from the sizes of pictures alone is computed on the host, so that it doesn't wait for the
device in every layer.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from mmrl.api.transfer import stream_of, upload
from mmrl.compute.teams import Team
from mmrl.policies.vlm.slices import joined, pass_team, shares, slicing_team, vectors_of_slice
from mmrl.policies.vlm.varlen import VARLEN
from mmrl.policies.vlm.vision_cache import look

NAME = "mmrl_flash_stacked"
"""transformers takes names with "flash" in them for variable-length kernels, and passes the sequence boundaries."""


def stacked_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None = None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query, key, value: [1, heads, S, width]; cu_seq_lens_q: [n + 1] boundaries, on the host. Returns
    ([1, S, heads, width], None)."""
    heads, total, width = query.shape[1:]
    lengths = tuple(cu_seq_lens_q.diff().tolist())

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)

    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if (found := VARLEN(q, k, v, lengths, scaling, dropout)) is not None:
        return found[None], None
    if len(set(lengths)) == 1:
        q, k, v = (x.view(heads, -1, lengths[0], width).transpose(0, 1) for x in (query[0], key[0], value[0]))
        return attend(q, k, v).transpose(1, 2).reshape(1, total, heads, width), None

    output = query.new_empty(total, heads, width)
    for index in equally_long(lengths, query.device, stream_of(query.device)):
        q, k, v = (x[0][:, index].transpose(0, 1) for x in (query, key, value))
        output[index] = attend(q, k, v).transpose(1, 2)
    return output[None], None


@lru_cache(maxsize=16)
def equally_long(lengths: tuple[int, ...], device: torch.device, stream: int) -> list[torch.Tensor]:
    """The places of sequences that lie one behind the other: an int64 [n, length] for each length. All layers of a pass take the
    same ones. stream: its own."""
    starts = [end - n for end, n in zip(accumulate(lengths), lengths, strict=True)]
    with torch.inference_mode(False):  # a later pass may have gradients
        rows = {length: torch.tensor([s for s, n in zip(starts, lengths, strict=True) if n == length]) for length in {*lengths}}
        places = {str(length): rows[length][:, None] + torch.arange(length) for length in sorted(rows)}
        return list(upload(places, device).values())


def embed_patches(embed: Any, pixels: torch.Tensor) -> torch.Tensor:
    """What the tower's `patch_embed` computes. pixels: [patches, values of a patch]. Returns [patches, width]."""
    weight = embed.proj.weight.flatten(1)
    return linear(pixels.to(weight.dtype), weight, embed.proj.bias)


def geometry(tower: Any, grid_thw: torch.Tensor, device: torch.device) -> dict[str, torch.Tensor]:
    """What a tower computes from the grids of its pictures, int64 [n, 3], as keyword arguments that it takes instead. Boundaries
    of sequences are read as numbers and stay on the host."""
    from transformers.vision_utils import (
        get_vision_cu_seqlens,
        get_vision_interpolation_indices_and_weights,
        get_vision_position_ids,
        get_vision_window_index,
    )

    grid_thw, merged = grid_thw.cpu(), tower.config.spatial_merge_size
    found = {"position_ids": get_vision_position_ids(grid_thw, merged), "cu_seqlens": get_vision_cu_seqlens(grid_thw)}
    if hasattr(tower, "window_size"):
        found["window_index"], found["cu_window_seqlens"] = get_vision_window_index(
            grid_thw, spatial_merge_size=merged, window_size=tower.window_size, patch_size=tower.patch_size
        )
    if hasattr(tower, "num_grid_per_side"):
        found["interp_indices"], found["interp_weights"] = get_vision_interpolation_indices_and_weights(
            grid_thw,
            num_grid_per_side=tower.num_grid_per_side,
            mode=tower.interpolation_mode,
            align_corners=tower.interpolation_align_corners,
            spatial_merge_size=merged,
        )
    return upload(found, device, on_host=("cu_seqlens", "cu_window_seqlens"))


def _look(tower: Any, hidden_states: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
    """The tower's forward. Of a pass that a team shares, each rank looks at some of the frames."""
    team = pass_team()
    if team is None:
        return look(tower, hidden_states, grid_thw, partial(_seen, tower, **kwargs))
    return _seen_together(team, tower, hidden_states, grid_thw, **kwargs)


def _seen_together(team: Team, tower: Any, patches: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
    """Frames don't see each other, so that a video is as many pictures. A rank without a frame looks at the first one too, whose
    gradients are zeros: with sharded weights all ranks reduce the same gradients."""
    grids = grid_thw.cpu()
    frames = torch.cat([grids.new_ones(int(grids[:, 0].sum()), 1), grids[:, 1:].repeat_interleave(grids[:, 0], 0)], 1)
    sizes = frames.prod(1).tolist()
    mine = shares(sizes, team.size)[team.place]
    looked = mine or range(1)
    first, count = sum(sizes[: looked.start]), sum(sizes[looked.start : looked.stop])
    own = patches[first : first + count].clone()  # a view would keep all pixels for the backward pass
    output = _seen(tower, own, frames[looked.start : looked.stop], **kwargs)
    merge = tower.config.spatial_merge_size**2
    start, kept = (first // merge, count // merge) if mine else (0, 0)

    def whole(found: torch.Tensor) -> torch.Tensor:
        return joined(team, found[:kept], start, sum(sizes) // merge)

    output.last_hidden_state, output.pooler_output = None, whole(output.pooler_output)
    if getattr(output, "deepstack_features", None):
        output.deepstack_features = [whole(one) for one in output.deepstack_features]
    return output


def _seen(tower: Any, hidden_states: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
    known = geometry(tower, grid_thw, hidden_states.device)
    return type(tower).forward(tower, hidden_states, grid_thw=grid_thw, **known, **kwargs)


def _placeholder_masks(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The model's `get_placeholder_mask`, whose check that there are as many tokens as features reads numbers of the device: here
    the device itself checks it."""
    given = {name: kwargs.pop(name, None) for name in ("image_features", "video_features")}
    masks = type(model).get_placeholder_mask(model, *args, **kwargs)
    for mask, features in zip(masks, given.values(), strict=False):  # Qwen-Omni's third is that of sounds
        if features is not None:
            torch._assert_async(mask[..., 0].sum() == len(features), "pictures have another number of tokens than of features")
    return masks


def _added_to_pictures(hidden_BSH: torch.Tensor, mask_BS: torch.Tensor, vectors_NH: torch.Tensor) -> torch.Tensor:
    """The language model's `_deepstack_process`: vectors are added to the tokens of pictures, of which there are N. Of
    shared rows the hidden states are a slice, and the others whole."""
    team = slicing_team()
    if team is not None:
        return hidden_BSH + vectors_of_slice(team, mask_BS, vectors_NH.to(hidden_BSH.dtype))
    place_N = torch.nonzero_static(mask_BS.flatten(), size=len(vectors_NH))[:, 0]
    return hidden_BSH.flatten(0, 1).index_add(0, place_N, vectors_NH.to(hidden_BSH.dtype)).view_as(hidden_BSH)


def speed_up(model: Any) -> None:
    """Make a Qwen model run all images of a batch together, embed patches by a matrix product, and not wait for its device.
    model: the one that has the vision tower."""
    count_on_host(model)
    stack_pictures(model)
    model.visual.patch_embed.forward = partial(embed_patches, model.visual.patch_embed)


def stack_pictures(model: Any) -> None:
    """See `stacked_attention`. model: as of `speed_up`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, torch.compiler.disable(stacked_attention))  # it loops over lengths
    model.visual.config._attn_implementation = NAME


def count_on_host(model: Any) -> None:
    """Make a Qwen model that is given grids on the host not wait for its device; no bit of its result changes. model: as of
    `speed_up`."""
    model.visual.forward = partial(_look, model.visual)
    model.get_placeholder_mask = partial(_placeholder_masks, model)
    if hasattr(model.get_decoder(), "_deepstack_process"):
        model.get_decoder()._deepstack_process = _added_to_pictures

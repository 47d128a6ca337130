"""The tower for sounds of Qwen3-Omni, so that what it hears in a sound doesn't depend on the sounds beside it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch


def hear_apart(tower: Any) -> None:
    """Let a tower read sounds of less than a chunk, which is a second, only with sounds of the same length.

    It cuts sounds into chunks, fills these up with zeros to the longest chunk of the pass, and runs three convolutions over them,
    of which the second and third also see what the first made of the zeros (transformers 5.19 and 5.24). So the last tokens of a
    short sound would depend on whether a longer one is in the batch."""
    tower.forward = partial(_heard, tower)


def _heard(tower: Any, input_features: torch.Tensor, feature_lens: torch.Tensor, **kwargs: Any) -> Any:
    """input_features: [bands, frames of all sounds]; feature_lens: int64 [sounds]."""
    run, frames = type(tower).forward, feature_lens.tolist()
    groups: dict[int, list[int]] = {}
    for sound, length in enumerate(frames):
        groups.setdefault(min(length, 2 * tower.n_window), []).append(sound)
    if len(groups) == 1:
        return run(tower, input_features, feature_lens=feature_lens, **kwargs)
    pieces = input_features.split(frames, 1)
    heard: dict[int, torch.Tensor] = {}
    for sounds in groups.values():
        output = run(tower, torch.cat([pieces[i] for i in sounds], 1), feature_lens=feature_lens[sounds], **kwargs)
        counts = tokens_of(tower, feature_lens[sounds]).tolist()
        heard |= dict(zip(sounds, output.last_hidden_state.split(counts), strict=True))
    output.last_hidden_state = output.pooler_output = torch.cat([heard[i] for i in range(len(frames))])
    return output


def tokens_of(tower: Any, frames: torch.Tensor) -> torch.Tensor:
    """int64 [sounds]: the tokens of sounds of so many frames."""
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

    found: torch.Tensor = _get_feat_extract_output_lengths(frames, tower.n_window)
    return found

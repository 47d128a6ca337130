"""The tower for sounds of Qwen3-Omni, so that what it hears in a sound doesn't depend on the sounds beside it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch


def hear_apart(tower: Any) -> None:
    """Let a tower read sounds of less than a chunk, which is a second, only with sounds of the same length. tower: transformers'
    or vLLM's.

    It cuts sounds into chunks, fills these up with zeros to the longest chunk of the pass, and runs three convolutions over them,
    of which the second and third also see what the first made of the zeros (transformers 5.19 and 5.24, vLLM 0.32). So the last
    tokens of a short sound would depend on whether a longer one is in the batch."""
    tower.forward = partial(_heard, tower)


def _heard(
    tower: Any, input_features: torch.Tensor, feature_lens: torch.Tensor, aftercnn_lens: torch.Tensor | None = None, **kwargs: Any
) -> Any:
    """input_features: [bands, frames of all sounds]; feature_lens: int64 [sounds]; aftercnn_lens: the tokens of each, which vLLM
    tells. vLLM's tower gives a tensor, and transformers' an object that holds it."""
    run, frames = partial(type(tower).forward, tower, **kwargs), feature_lens.tolist()
    told = {"feature_lens": feature_lens} | ({} if aftercnn_lens is None else {"aftercnn_lens": aftercnn_lens})
    groups: dict[int, list[int]] = {}
    for sound, length in enumerate(frames):
        groups.setdefault(min(length, 2 * tower.n_window), []).append(sound)
    if len(groups) == 1:
        return run(input_features, **told)
    pieces = input_features.split(frames, 1)
    heard: dict[int, torch.Tensor] = {}
    for sounds in groups.values():
        output = run(torch.cat([pieces[i] for i in sounds], 1), **{name: lengths[sounds] for name, lengths in told.items()})
        found = output if isinstance(output, torch.Tensor) else output.last_hidden_state
        counts = tokens_of(tower, feature_lens[sounds]).tolist()
        heard |= dict(zip(sounds, found.split(counts), strict=True))
    together = torch.cat([heard[i] for i in range(len(frames))])
    if isinstance(output, torch.Tensor):
        return together
    output.last_hidden_state = output.pooler_output = together
    return output


def tokens_of(tower: Any, frames: torch.Tensor) -> torch.Tensor:
    """int64 [sounds]: the tokens of sounds of so many frames."""
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

    found: torch.Tensor = _get_feat_extract_output_lengths(frames, tower.n_window)
    return found

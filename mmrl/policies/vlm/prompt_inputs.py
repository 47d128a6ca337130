"""A prompt, or a conversation so far, as model inputs: how it goes on, and how the media of several are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from mmrl.api.coordinates import CoordinateFormat

TRUE_SIZES = ("image_sizes", "pixel_attention_mask")
"""Keyword arguments that tell a model which part of each picture is padding."""
FRAMES = "feature_attention_mask"
"""An argument [sounds, frames] that tells which frames of a spectrogram are sound; it doesn't run along the tokens."""
SOUNDS = ("input_features", FRAMES)
"""Keyword arguments of sounds, of which the model is told what is padding."""
SECONDS_PER_GRID = "video_second_per_grid"
"""Keyword argument of Qwen-Omni: the seconds that each video's frames are apart, times the frames of a patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInputs:
    """A prompt as the model reads it, made once and shared by its group, its sampler and its update."""

    ids: torch.Tensor
    """int64 [S]."""
    positions: torch.Tensor | None
    """int64 [axes, S], or float32 where frames of a video lie between two positions (Qwen3-Omni); None if the model computes
    them."""
    media: Mapping[str, torch.Tensor]
    """Keyword arguments of the forward that don't run along the tokens: pixels, grids."""
    token_types: Mapping[str, torch.Tensor]
    """Keyword arguments [S] that do, such as `mm_token_type_ids`; a completion's tokens get the family's `completion_type`."""
    pictures: tuple[int, ...] = ()
    """A number for each picture, see `mmrl.policies.vlm.vision_cache`."""
    clocks: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Times from which positions of videos were computed; needed by a sampler that computes them again."""
    image_sizes: tuple[tuple[int, int], ...] = ()
    model_sizes: tuple[tuple[int, int], ...] = ()
    coordinate_format: CoordinateFormat = CoordinateFormat.PIXELS

    @property
    def next_position(self) -> float:
        """The rotary position of the first completion token: an int, or a float for positions with fractions."""
        return len(self.ids) if self.positions is None else self.positions.max().item() + 1

    @property
    def media_rows(self) -> dict[str, int]:
        """The rows of each tensor of media and clocks."""
        return {name: len(rows) for name, rows in (*self.media.items(), *self.clocks.items())}

    def answered(self, ids: torch.Tensor, text_type: int) -> PromptInputs:
        """These inputs with tokens of text behind them, such as those of an answer. ids: int64 [T]. text_type: their token type,
        see `Family.completion_type`."""
        positions = None if self.positions is None else torch.arange(len(ids)).expand(len(self.positions), -1)
        return self.followed(PromptInputs(ids=ids, positions=positions, media={}, token_types={}), text_type)

    def followed(self, later: PromptInputs, text_type: int) -> PromptInputs:
        """These inputs with others behind them, whose positions begin at 0. text_type: see `answered`. A processor may give types
        only where it sees pictures; the other tokens are text."""
        positions = self.positions
        if positions is not None:
            assert later.positions is not None, "both are read by the same model"
            positions = torch.cat([positions, later.positions + self.next_position], 1)
        dtypes = {name: known.dtype for name, known in (*self.token_types.items(), *later.token_types.items())}

        def types(of: PromptInputs, name: str) -> torch.Tensor:
            known = of.token_types.get(name)
            return torch.full((len(of.ids),), text_type, dtype=dtypes[name]) if known is None else known

        return PromptInputs(
            ids=torch.cat([self.ids, later.ids]),
            positions=positions,
            media=concatenate([self.media, later.media]) if later.media else self.media,
            token_types={name: torch.cat([types(self, name), types(later, name)]) for name in dtypes},
            pictures=(*self.pictures, *later.pictures),
            clocks=concatenate([self.clocks, later.clocks]) if later.clocks else self.clocks,
            image_sizes=(*self.image_sizes, *later.image_sizes),
            model_sizes=(*self.model_sizes, *later.model_sizes),
            coordinate_format=self.coordinate_format,
        )

    def with_prompt(self, first: PromptInputs, other: PromptInputs) -> PromptInputs:
        """These inputs, of a conversation that began with the prompt `first`, as if it had begun with `other`. What was said
        after it stays, and lies as far behind it as before."""
        start, begun = len(first.ids), first.media_rows

        def later(known: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            found = {name: rows[begun.get(name, 0) :] for name, rows in known.items()}
            return {name: rows for name, rows in found.items() if len(rows)}

        said = replace(
            self,
            ids=self.ids[start:],
            positions=None if self.positions is None else self.positions[:, start:] - first.next_position,
            media=later(self.media),
            token_types={name: known[start:] for name, known in self.token_types.items()},
            pictures=self.pictures[len(first.pictures) :],
            clocks=later(self.clocks),
            image_sizes=self.image_sizes[len(first.image_sizes) :],
            model_sizes=self.model_sizes[len(first.model_sizes) :],
        )
        # what was said begins with sampled text
        return other.followed(said, next((int(known[0]) for known in said.token_types.values() if len(known)), 0))


def can_join(media: Sequence[Mapping[str, torch.Tensor]]) -> bool:
    """Whether `concatenate` is exact: the tensors differ along their first axis alone, or the model is told what is padding."""
    shapes = [{m[k].shape[1:] for m in media if k in m} for k in {k for m in media for k in m}.difference(SOUNDS)]
    return all(len(found) == 1 for found in shapes) or any(name in m for m in media for name in TRUE_SIZES)


def concatenate(media: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Join the media arguments of several prompts along their first axis; prompts without media add nothing. Where the other axes
    differ (tiles of a picture, its height and width), tensors are padded with zeros at their ends, as the processors do it."""
    keys = sorted({k for m in media for k in m})
    return {k: _padded([m[k] for m in media if k in m]) for k in keys}


def _padded(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    shapes = {v.shape[1:] for v in tensors}
    if len(shapes) == 1:
        return torch.cat(list(tensors))
    largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    joined = tensors[0].new_zeros(sum(len(v) for v in tensors), *largest)
    start = 0
    for v in tensors:
        joined[(slice(start, start + len(v)), *(slice(size) for size in v.shape[1:]))] = v
        start += len(v)
    return joined

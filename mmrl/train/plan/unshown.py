"""Pictures whose passes need no processor: those of Qwen-VL and what sees as it does, of which the patches follow from the size,
and those of OpenVLA, which are all of one size. b is the bytes of a weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.train.plan.once import once
from mmrl.train.plan.pictures import Pictures, SeenPicture
from mmrl.train.plan.skeletons import skeleton

GRID = 16
"""Patches of a side of the square that stands for all pictures: two windows of Qwen2.5-VL."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SeenGrid(SeenPicture):
    """A square that stands for grids of other sizes: of a patch, all is as much in these but attention to the whole picture."""

    half: SeenPicture | None
    """A square of half the side."""

    def attention(self, patches: int, picture: int, b: int) -> float:
        assert self.half is not None
        few, many = (each.forward(b).attention / each.patches for each in (self.half, self))
        slope = (many - few) / (self.patches - self.half.patches)
        return (many + slope * (picture - self.patches)) * patches


class Gridded(Pictures):
    """Pictures that `image_grid_thw` describes. config: the content of a config.json."""

    alike = True

    def __init__(self, config: str, what: str) -> None:
        super().__init__(config, None, what)
        kind = skeleton(config).config.vision_config
        self.merged = int(kind.spatial_merge_size)
        self.side = int(kind.patch_size) * self.merged
        """Pixels of a side of a token."""
        self.values = int(kind.in_channels * kind.temporal_patch_size * kind.patch_size**2)
        layers = 1 + len(getattr(kind, "deepstack_visual_indexes", None) or ())
        self.kept_token = layers * int(skeleton(config).config.get_text_config().hidden_size)

    def tokens(self, pixels: int) -> int:
        return max(1, round(pixels / self.side**2))

    def patches(self, pixels: int) -> int:
        return self.tokens(pixels) * self.merged**2

    def seen(self, pixels: int) -> SeenPicture:
        return self._square(GRID)

    @once
    def _square(self, side: int) -> SeenPicture:
        tokens = side**2 // self.merged**2
        ids = torch.full((tokens,), skeleton(self.config).config.image_token_id)
        media = {"pixel_values": torch.zeros(side**2, self.values), "image_grid_thw": torch.tensor([[1, side, side]])}
        places = torch.arange(tokens).expand(3, -1)
        encoded = PromptInputs(ids=ids, positions=places, media=media, token_types={})
        half = self._square(side // 2) if side == GRID else None
        return SeenGrid(pictures=self, encoded=encoded, tokens=tokens, patches=side**2, half=half, kept_token=self.kept_token)


class OfOneSize(Pictures):
    """OpenVLA's. config: the content of its config.json."""

    alike = True

    def seen(self, pixels: int) -> SeenPicture:
        return self._shown()

    @once
    def _shown(self) -> SeenPicture:
        config = skeleton(self.config).config
        side, towers = config.image_sizes[0], config.shapes
        tokens = (side // towers[0]["patch"]) ** 2
        ids, media = torch.full((tokens,), config.image_id), {"pixel_values": torch.zeros(1, 3 * len(towers), side, side)}
        encoded = PromptInputs(ids=ids, positions=torch.arange(tokens)[None], media=media, token_types={})
        return SeenPicture(pictures=self, encoded=encoded, tokens=tokens, patches=tokens)

"""What GR00T N1.6 reads, as Isaac-GR00T's `Gr00tN1d6Processor` and the processor of its Eagle prepare it (branch n1.6.1-release,
gr00t/model/gr00t_n1d6/processing_gr00t_n1d6.py and processing_eagle3_vl.py)."""

from __future__ import annotations

from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.api.simulators.types import Observation
from mmrl.policies.gr00t.eagle import MERGE, EagleConfig
from mmrl.policies.gr00t.reading import Reader, Sizes

PICTURE = "<IMG_CONTEXT>"
ADDED = (*(PICTURE, "<img>", "</img>", "<box>", "</box>", "<quad>", "</quad>", "<ref>", "</ref>", "<interval>", "</interval>"),)
"""Tokens that Eagle added to Qwen3's, in the order of their numbers."""
QWEN3 = "Qwen/Qwen3-1.7B"
"""The model that Eagle's language model was made from; published checkpoints have no tokenizer of their own."""
CURE = f"set policy.options.processor to a folder or hub name with the tokenizer of a Qwen3, such as {QWEN3}"


class EagleReader(Reader):
    def written(self, said: str, sizes: Sizes) -> list[int]:
        """The chat template with the text before all pictures, each with its number, and no prompt to answer."""
        unit = self.framing.unit
        counts = [(high // unit) * (wide // unit) for high, wide in sizes]
        shown = "".join(f"<image {k}><img>{PICTURE * count}</img>" for k, count in enumerate(counts, 1))
        text = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{said}{shown}<|im_end|>\n"
        found: list[int] = self.processor(text)["input_ids"]
        return found

    def shown(
        self, seen: Observation, device: torch.device, ids_nP: torch.Tensor, real_nP: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """See `EagleNetwork`."""
        side = self.framing.unit // MERGE
        parts = []
        for pictures in self.pictures(seen, device):
            grid = ((pictures.float() - 127.5) / 127.5).unflatten(3, (-1, side)).unflatten(2, (-1, side))
            parts.append(grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2))
        grids = torch.tensor([(high // side, wide // side) for high, wide in self.sizes(seen)])
        return {"pixel_values": torch.cat(parts, 1), "image_grid": grids}


def tokenizer_of(name: str, where: str, eagle: EagleConfig) -> Any:
    """A Qwen3's tokenizer with Eagle's tokens. name: the checkpoint's. Raises UserError for a tokenizer of another model."""
    from tokenizers import AddedToken
    from transformers import AutoTokenizer

    try:
        found: Any = AutoTokenizer.from_pretrained(where, config=eagle.text_config)
    except Exception as error:
        raise UserError(f"{name!r}: no tokenizer in {where!r}: {shorten(error, 200)}: {CURE}", key="policy.model") from error
    found.add_tokens([AddedToken(token, special=True, normalized=False) for token in ADDED])
    if (number := found.convert_tokens_to_ids(PICTURE)) != eagle.image_token_id:
        raise UserError(
            f"{name!r}: the tokenizer of {where!r} has {PICTURE} as token {number}, and the model as {eagle.image_token_id}: "
            f"{CURE}",
            key="policy.model",
        )
    return found

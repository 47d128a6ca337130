"""What GR00T reads: pictures and an instruction -> the inputs of its backbone. n calls, P tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.policies.acting.observed import cameras_of
from mmrl.policies.gr00t.embodiment import Embodiment
from mmrl.policies.gr00t.pictures import Framing

Sizes = tuple[tuple[int, int], ...]
"""(height, width) of each picture of a call, as the network sees them."""


class Reader:
    """Prepares observations as the checkpoint was trained with them."""

    def __init__(
        self, processor: Any, framing: Framing, embodiment: Embodiment, cameras: Sequence[str], *, plain_text: bool
    ) -> None:
        """processor: of the Qwen3-VL; of N1.6 the tokenizer. cameras: the simulator's, in the order of the embodiment's; empty:
        those of its names.
        plain_text: instructions are lower-case and without punctuation."""
        self.processor, self.framing, self.embodiment, self.cameras = processor, framing, embodiment, list(cameras)
        self.plain_text = plain_text
        self._read: dict[tuple[str, Sizes], list[int]] = {}
        self._framed: dict[tuple[int, int], tuple[int, int]] = {}

    def names(self, seen: Observation | TrajectoryData) -> list[str]:
        own = self.embodiment.cameras
        if not self.cameras and seen.images and not set(own) <= set(seen.images):
            raise UserError(
                f"the embodiment {self.embodiment.name!r} looks through {', '.join(own)}, and the simulator has "
                f"{', '.join(seen.images)}: set policy.options.cameras to those that take their places, in this order"
            )
        return cameras_of(seen, self.cameras or own, list(seen.images))

    def pictures(self, seen: Observation, device: torch.device) -> list[torch.Tensor]:
        """uint8 [n, 3, height, width] for each picture of a call: all cameras, then again for each earlier frame that is read."""
        shown = [self.framing(seen.images[name].to(device).permute(0, 3, 1, 2)) for name in self.names(seen)]
        return shown * self.embodiment.frames

    def sizes(self, seen: Observation | TrajectoryData) -> Sizes:
        found = []
        for name in self.names(seen):
            height, width = seen.images[name].shape[1:3]
            if (height, width) not in self._framed:
                blank = self.framing(torch.zeros(1, 3, height, width, dtype=torch.uint8))
                self._framed[height, width] = (blank.shape[2], blank.shape[3])
            found.append(self._framed[height, width])
        return tuple(found) * self.embodiment.frames

    def ids(self, instruction: str, sizes: Sizes) -> list[int]:
        key = (instruction, sizes)
        if key not in self._read:
            said = re.sub(r"[^\w\s]", "", instruction.lower()) if self.plain_text else instruction
            self._read[key] = self.written(said, sizes)
        return self._read[key]

    def written(self, said: str, sizes: Sizes) -> list[int]:
        """The chat template with all pictures before the text, and no prompt to answer."""
        parts = [*({"type": "image"} for _ in sizes), {"type": "text", "text": said}]
        text = self.processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
        blank = [torch.zeros(3, *size, dtype=torch.uint8) for size in sizes]
        found: list[int] = self.processor(text=[text], images=blank)["input_ids"][0]
        return found

    def inputs(self, seen: Observation, device: torch.device) -> dict[str, torch.Tensor]:
        """See `Network.features`. Padding is on the left. The pixels are on the device, all else on the host."""
        sizes = self.sizes(seen)
        rows = [self.ids(text, sizes) for text in seen.instructions]
        longest = max(map(len, rows))
        ids_nP = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        lengths_n = torch.tensor([len(row) for row in rows])
        real_nP = torch.arange(longest) >= longest - lengths_n[:, None]
        return {"input_ids": ids_nP, "attention_mask": real_nP.long(), **self.shown(seen, device, ids_nP, real_nP)}

    def shown(
        self, seen: Observation, device: torch.device, ids_nP: torch.Tensor, real_nP: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The pictures of all calls, and where they stand among the tokens."""
        pictures = self.pictures(seen, device)
        images = [one[row] for row in range(len(seen)) for one in pictures]
        media = self.processor.image_processor(images=images, return_tensors="pt")
        image = self.processor.tokenizer.convert_tokens_to_ids(self.processor.image_token)
        return {
            "mm_token_type_ids": ((ids_nP == image) & real_nP).int(),
            "pixel_values": media["pixel_values"].to(device),
            "image_grid_thw": media["image_grid_thw"],
        }

"""What pi0, pi0.5 and pi0-FAST read: pictures, and words of an instruction.

n calls, P tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from mmrl.api.simulators.types import Observation
from mmrl.api.transfer import upload
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.call_graphs import ROUND
from mmrl.policies.acting.flow_noise import is_noise
from mmrl.policies.acting.observed import cameras_of
from mmrl.policies.lora import adapter_chain, is_adapter
from mmrl.policies.pi0.framing import framed
from mmrl.policies.pi0.lerobot_layout import PICTURES
from mmrl.policies.pi0.loading import check_model, skeleton
from mmrl.policies.vlm.weights import check_files


class PiReader(ActingPolicy):
    """Prepares observations for a PaliGemma."""

    kind: ClassVar[str]
    model: Any
    tokenizer: Any
    text: str
    """The text, with {instruction} in it."""
    cameras: list[str]
    shown: dict[str, str]
    """Camera -> LeRobot's name of its pictures, in the order in which they were last read."""
    crop: float
    side: int
    """Pixels of a picture's sides as the network sees it."""
    resize: str
    """See `framed`."""
    text_tokens: int
    """Most tokens of the text; 0: no limit."""

    @classmethod
    def check(cls, config: PolicyConfig) -> None:
        """Raise UserError for a `model` that can't be loaded, without loading it."""
        check_model(config, cls.kind)
        check_files(config.model, lambda: cls.skeleton(config))

    @classmethod
    def skeleton(cls, config: PolicyConfig) -> Any:
        """The model of a configuration with all its weights' names and shapes, on torch's meta device."""
        return skeleton(adapter_chain(config.model)[1], cls.kind)

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = self.model.model.vlm.get_input_embeddings().weight.dtype
        return found

    def _pictures(self, seen: Observation) -> torch.Tensor:
        """[n, cameras, 3, side, side] in [-1, 1]: cropped, scaled to fit and padded with black."""
        names = cameras_of(seen, self.cameras, list(seen.images))
        self.shown = {name: self.shown.get(name, PICTURES + name) for name in names}
        found = [framed(seen.images[name].to(self.device), self.crop, self.side, self.resize) for name in names]
        return torch.stack(found, 1).to(self._dtype)

    def _said(self, instruction: str) -> str:
        return self.text.replace("{instruction}", instruction).strip().replace("_", " ").replace("\n", " ")

    def _words(self, text: str) -> list[int]:
        """A BOS token and the text, cut."""
        words = [self.tokenizer.bos_token_id, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        return words[: self.text_tokens or None]

    def _length_of(self, rows: list[list[int]]) -> int:
        """To which they are padded: the longest, and where calls go by graphs the next multiple, as each length needs a graph of
        its own."""
        longest = max(map(len, rows))
        return longest if self.graphs is None or torch.is_grad_enabled() else -(-longest // ROUND) * ROUND

    def _padded(self, rows: list[list[int]], longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids int64 [n, P], whether they are a row's own), on the device."""
        ids_nP = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        there = upload({"ids_nP": ids_nP, "lengths_n": torch.tensor([len(row) for row in rows])}, self.device)
        return there["ids_nP"], torch.arange(longest, device=self.device) < there["lengths_n"][:, None]

    def _as_attention_wants(self, mask: torch.Tensor) -> torch.Tensor:
        """Boolean, or additive for eager attention."""
        if self.model.config.dit_config._attn_implementation != "eager":
            return mask
        return torch.zeros(mask.shape, dtype=self._dtype, device=mask.device).masked_fill(~mask, torch.finfo(self._dtype).min)

    def parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if not self.lora or is_adapter(name) or is_noise(name))

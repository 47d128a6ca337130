"""The base class of logits processors for the embedded sampler."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from transformers import DynamicCache

from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.vlm import VLM


class LogitsProcessor:
    """Called with the logits of each token before it is chosen. The base class changes nothing.

    N rows are decoded together, fewer as completions end."""

    def decoding(self, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Context manager around all decoding; by default without gradients."""
        return torch.inference_mode()

    def begin(self, policy: VLM, cache: DynamicCache, inputs: Sequence[PromptInputs], group_size: int) -> None:
        """N = P * group_size rows begin, a prompt's next to each other. cache: holds the prompts, padded on the left."""

    def needs_gradient(self, step: int) -> bool:
        """Whether the logits of this token are computed with gradient."""
        return False

    def __call__(self, step: int, ids_NT: torch.Tensor, logits_NV: torch.Tensor) -> torch.Tensor:
        """The logits to choose from. step: number of tokens of each row; `ids_NT`, int64, are these tokens."""
        return logits_NV

    def end(self, length_N: torch.Tensor) -> None:
        """All rows have ended, with these numbers of tokens."""

"""Attention within sequences of several lengths that lie one behind the other, by one kernel of a GPU: torch's, which is
FlashAttention 2 (Dao 2023) or later."""

from __future__ import annotations

import functools
import warnings
from itertools import accumulate
from typing import Any

import torch

from mmrl.api.errors import shorten
from mmrl.api.transfer import stream_of
from mmrl.policies.choices import Choice


class Varlen:
    """torch's kernel, while it works."""

    def __init__(self) -> None:
        self.failure = ""
        """Why it can't be used, once that is known."""

    def usable(self, query: torch.Tensor, dropout: float) -> bool:
        return query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16) and not dropout and not self.failure

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: tuple[int, ...], scale: float, dropout: float
    ) -> torch.Tensor | None:
        """[S, heads, width] of three like it; the sequences' lengths sum to S. None if the kernel isn't used."""
        choice = Choice(self.usable(query, dropout))
        if not choice.faster:
            return None
        ends, longest = _ends(lengths, query.device, stream_of(query.device)), max(lengths)
        try:
            return _kernel()(query, key, value, ends, ends, longest, longest, **_scaled(scale, query.shape[-1]))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # an old GPU, a width that it doesn't know, a torch without it
            if choice.repeated:
                raise
            choice.failed()
            self.failure = f"{type(error).__name__}: {shorten(error, 200)}"
            warnings.warn(
                f"the kernel for pictures of several sizes can't be used: they are computed size by size ({self.failure})",
                stacklevel=2,
            )
            return None


VARLEN = Varlen()


def _kernel() -> Any:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def _scaled(scale: float, width: int) -> dict[str, float]:
    """torch 2.10 knows only the usual scale."""
    return {} if abs(scale * width**0.5 - 1) < 1e-6 else {"scale": scale}


@functools.lru_cache(maxsize=16)
def _ends(lengths: tuple[int, ...], device: torch.device, stream: int) -> torch.Tensor:
    """int32 [n + 1]: where each sequence begins and the last ends. All layers of a pass take the same ones. stream: its own."""
    with torch.inference_mode(False):  # a later pass may have gradients
        return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)

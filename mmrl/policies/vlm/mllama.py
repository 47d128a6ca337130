"""Llama 3.2 Vision, which reads pictures by cross-attention.

Its pictures are an argument by rows, [rows, pictures, tiles, ...], and a mask [rows, tokens, pictures, tiles] says which of them
a token sees. The processor makes the mask of a prompt; the tokens behind it see what its last token sees, as in transformers'
`generate`. So all pictures are in the prompt, and a completion has a row of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmrl.api.errors import UserError
from mmrl.policies.vlm.capabilities import UNKNOWN, Capabilities
from mmrl.policies.vlm.families import Family

SEEN = "cross_attention_mask"


class Mllama(Family):
    """Llama 3.2 Vision."""

    sees_replies = False
    shares_prompt = False

    def __init__(self, model: Any, processor: Any, capabilities: Capabilities = UNKNOWN) -> None:
        super().__init__(model, processor, capabilities)
        self.seen: torch.Tensor | None = None
        """What the last token of the prompt that is being answered sees, [1, 1, pictures, tiles]."""
        if see_on not in model._forward_pre_hooks.values():
            model.register_forward_pre_hook(see_on, with_kwargs=True)

    def positions(self, ids_S: torch.Tensor, encoded: Mapping[str, torch.Tensor]) -> None:
        """None. Raises UserError for a prompt without a picture: in a batch with others it would read theirs."""
        if SEEN not in encoded:
            raise UserError("a mllama model needs a picture in each prompt here: show it one, or choose another model")

    def step(
        self,
        ids_NS: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor | None,
        media: Mapping[str, torch.Tensor],
        cache: Any,
    ) -> torch.Tensor:
        """Prompts are sampled one at a time, so that all rows of a cache see the same."""
        if before := cache.get_seq_length():
            assert self.seen is not None
            # for the tokens in the cache too: transformers 5.17 looks the new ones up by their places
            media = {SEEN: self.seen.expand(len(ids_NS), before + ids_NS.shape[1], -1, -1)}
        else:
            self.seen = media[SEEN][:1, -1:]
        return super().step(ids_NS, mask, positions, media, cache)


def see_on(model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """A forward pre-hook: the tokens behind a mask see what its last one sees."""
    seen, ids = kwargs.get(SEEN), kwargs.get("input_ids")
    if seen is None or ids is None or (more := ids.shape[1] - seen.shape[1]) <= 0:
        return None
    return args, kwargs | {SEEN: torch.cat([seen, seen[:, -1:].expand(-1, more, -1, -1)], 1)}

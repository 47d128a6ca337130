"""What `mmrl plan` reads of pi0-FAST; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers import DynamicCache

from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.planned import META, Planned
from mmrl.policies.lora import adapter_chain
from mmrl.policies.pi0.lerobot_layout import published
from mmrl.policies.pi0.planned import WORDS, blank_pictures, hollow, picture_tokens, pictures_of
from mmrl.policies.pi0.tiny_fast import fast_actions

ROOM = 256
"""Most tokens of a call where no checkpoint says it (LeRobot, `PI0FastConfig.max_decoding_steps`)."""
FAST = 2048
"""Tokens of the published FAST tokenizer (physical-intelligence/fast)."""
BEFORE = 3
"""Words before an action that are given where actions alone are sampled."""


def planned_fast(kind: Any, config: PolicyConfig) -> Planned:
    """Calls are planned with all the tokens that they have room for. kind: the class of the policy."""
    own, name = kind.options_class(**config.options), adapter_chain(config.model)[1]
    it, files = hollow(kind, config, own), published(name)
    room = own.action_tokens or int((files.config if files else {}).get("max_decoding_steps", ROOM))
    given = own.vocabulary == "actions"
    it.head = SimpleNamespace(given=given, before=[0] * BEFORE)
    size = fast_actions().size if name.startswith("tiny:") else FAST
    it.action_ids = torch.empty(size + 1 if given else 0, dtype=torch.int64, device=META)
    settings, pictures = it.model.config, pictures_of(config, own)
    language = settings.vlm_config.text_config
    shown = pictures * picture_tokens(settings)

    def prefix(text: int) -> int:
        return shown + text + WORDS * own.state + 1  # a BOS token is behind the text

    def read(rows: int, text: int, more: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings of all that is read and of `more` tokens, and which of the former are no padding."""
        ids = torch.empty(rows, prefix(text) - shown + it._given + more, dtype=torch.int64, device=META)
        embeds = [it.model.embed_pictures(blank_pictures(it, rows, pictures)), it.model.embed(ids)]
        return torch.cat(embeds, 1).to(it._dtype), torch.ones(rows, prefix(text), dtype=torch.bool, device=META)

    def act(rows: int, text: int) -> None:
        embeds, real_nP = read(rows, text, 0)
        mask, positions = it._places(real_nP, it._given)
        hidden = it._hidden(embeds, mask, positions, DynamicCache(config=language))[:, -1]
        it._logits(hidden).float().log_softmax(-1)

    def step(rows: int, text: int) -> None:
        """A token, where half of them are said."""
        cache, before = DynamicCache(config=language), prefix(text) + it._given + room // 2
        keys = torch.empty(rows, language.num_key_value_heads, before, language.head_dim, dtype=it._dtype, device=META)
        for layer in range(language.num_hidden_layers):
            cache.update(keys, torch.empty_like(keys), layer)
        one = it.model.embed(torch.empty(rows, 1, dtype=torch.int64, device=META)).to(it._dtype)
        mask = it._as_attention_wants(torch.ones(rows, 1, 1, before + 1, dtype=torch.bool, device=META))
        hidden = it._hidden(one, mask, torch.empty(rows, 1, dtype=torch.int64, device=META), cache)[:, -1]
        it._logits(hidden).float().log_softmax(-1)

    def learn(rows: int, text: int, demonstrated: bool) -> torch.Tensor:
        embeds, real_nP = read(rows, text, room - 1)
        hidden = it._hidden(embeds, *it._places(real_nP, it._given + room - 1))
        said = hidden[:, -room:].flatten(0, 1)
        logprobs, entropy = it._scores(said, torch.empty(len(said), dtype=torch.int64, device=META), 1.0)
        return logprobs.sum() + entropy.sum()

    return Planned(
        model=it.model,
        width=int(language.hidden_size),
        chunk=own.chunk,
        dims=own.dims,
        steps=room,
        pictures=pictures,
        pixels=settings.vlm_config.vision_config.image_size**2,
        prefix=prefix,
        tokens=lambda text, demonstrated: prefix(text) + it._given + room,
        act=act,
        learn=learn,
        step=step,
    )

"""The rows that the embedded sampler decodes together, with their cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Protocol

import torch
from transformers import DynamicCache

from mmrl.api.transfer import upload
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.prompt_rows import padding_only
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.cache import expand, select
from mmrl.rollout.generate.record_routes import RouteRecorder


class Prefiller(Protocol):
    """What the rows need of their sampler."""

    policy: VLM

    def prefill(self, inputs: list[PromptInputs], cache: DynamicCache) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Fill the cache with the prompts, padded on the left; returns logits [P, V] and the padding mask, if any."""
        ...


class Rows:
    """Completions of several prompts, a group's next to each other, all with the same number of tokens so far. Rows that are
    finished are dropped."""

    cache: DynamicCache
    mask: torch.Tensor | None
    """Of prompts and completions; None without padding."""

    def __init__(
        self,
        sampler: Prefiller,
        inputs: list[PromptInputs],
        group_size: int,
        beside: Mapping[str, torch.Tensor] = MappingProxyType({}),
        recorder: RouteRecorder | None = None,
    ) -> None:
        """beside: tensors of the host that go to the device in the same copy. recorder: notes the experts of tokens."""
        self.sampler, self.inputs, self.group_size, self.recorder = sampler, inputs, group_size, recorder
        device = sampler.policy.device
        self.row_N = torch.arange(len(inputs) * group_size, device=device)
        """Which completion each row is."""
        first = torch.tensor([one.next_position for one in inputs]).repeat_interleave(group_size)
        self.beside = upload({"position_N": first, **beside}, device)
        self.position_N = self.beside["position_N"]
        """Rotary position of each row's first token."""
        self.logits = self._prefill(range(len(inputs)))
        """Logits [N, V] that follow the prompts."""

    def _prefill(self, prompts: Sequence[int]) -> torch.Tensor:
        """A cache of these prompts, each repeated for its group; returns the logits that follow them."""
        self.cache = DynamicCache(config=self.sampler.policy.model.config)
        given = [self.inputs[i] for i in prompts]
        with self.recorder.prompts_read([len(one.ids) for one in given]) if self.recorder else nullcontext():
            logits, mask = self.sampler.prefill(given, self.cache)
        prompt_N = torch.arange(len(prompts), device=logits.device).repeat_interleave(self.group_size)
        self._expand(prompt_N)
        self.mask = None if mask is None else mask.repeat_interleave(self.group_size, 0)
        return logits.repeat_interleave(self.group_size, 0)

    def _expand(self, prompt_N: torch.Tensor) -> None:
        """Give each row its own part of the cache. prompt_N: its prompt."""
        expand(self.cache, prompt_N, self.group_size)

    def keep(self, kept_N: torch.Tensor) -> None:
        """Drop all but these rows."""
        self.row_N, self.position_N = self.row_N[kept_N], self.position_N[kept_N]
        self._select(kept_N)

    def _select(self, kept_N: torch.Tensor) -> None:
        select(self.cache, kept_N)
        self.mask = None if self.mask is None else padding_only(self.mask[kept_N])

    def step(self, token_N: torch.Tensor, t: int) -> torch.Tensor:
        """Logits after token t, counted from 0, of all completions."""
        return self._fed(token_N[self.row_N][:, None], t)

    def again(self, tokens_NT: torch.Tensor) -> torch.Tensor:
        """Compute the cache of the rows anew, because the weights have changed; returns the logits after these tokens of all
        completions. Each prompt and its media are computed once for its group."""
        groups_N = self.row_N // self.group_size
        prompts, own_N = groups_N.unique(return_inverse=True)
        self._prefill(prompts.tolist())
        self._select(own_N * self.group_size + self.row_N % self.group_size)
        tokens_NT, family = tokens_NT[self.row_N], self.sampler.policy.family
        if family.capabilities.packs and not family.capabilities.recurrent:
            return self._fed(tokens_NT, 0)
        for t in range(tokens_NT.shape[1]):  # layers that begin anew with every pass of more than one token
            logits = self._fed(tokens_NT[:, t : t + 1], t)
        return logits

    def _fed(self, tokens_NT: torch.Tensor, first: int) -> torch.Tensor:
        """Logits after these tokens, the completions' from number `first` on."""
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(tokens_NT.shape)], 1)
        given, positions = self.inputs[0].positions, None
        if given is not None:
            at_NT = self.position_N[:, None] + torch.arange(first, first + tokens_NT.shape[1], device=tokens_NT.device)
            positions = at_NT.expand(given.shape[0], -1, -1)
        with self.recorder.tokens_read(self.row_N, first) if self.recorder else nullcontext():
            return self.sampler.policy.family.step(tokens_NT, self.mask, positions, {}, self.cache)

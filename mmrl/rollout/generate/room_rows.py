"""The rows that the embedded sampler decodes together, in rooms of fixed shape, by CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType

import torch

from mmrl.api.errors import shorten
from mmrl.api.types import Prompt, user_message
from mmrl.policies.vlm.probe import BOUNDS, TEXTS
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.rollout.generate.decode_graphs import DecodeGraphs
from mmrl.rollout.generate.record_routes import RouteRecorder
from mmrl.rollout.generate.rooms import KINDS, Room
from mmrl.rollout.generate.rows import Prefiller, Rows
from mmrl.rollout.generate.sampling import SamplingParams


def rows_for(
    sampler: Prefiller,
    graphs: DecodeGraphs | None,
    inputs: list[PromptInputs],
    group_size: int,
    sampling: SamplingParams,
    beside: Mapping[str, torch.Tensor],
) -> Rows:
    """Rows in rooms if graphs are wanted, the model can be decoded in rooms, and nobody looks into it at each token."""
    recorder = RouteRecorder(sampler.policy.model, group_size) if sampling.routes else None
    if graphs and not sampling.logits_processor and not recorder and fit(sampler, graphs):
        return RoomRows(sampler, inputs, group_size, graphs, sampling.max_tokens, beside)
    return Rows(sampler, inputs, group_size, beside, recorder)


class RoomRows(Rows):
    """Rows whose cache is moved into a room when the first token is fed, and to another when the room is used up."""

    def __init__(
        self,
        sampler: Prefiller,
        inputs: list[PromptInputs],
        group_size: int,
        graphs: DecodeGraphs,
        max_tokens: int,
        beside: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        self.graphs, self.max_tokens = graphs, max_tokens
        self.room: Room | None = None
        self.fed = 0
        """Tokens of each completion that the model has read."""
        self.from_N: torch.Tensor | None = None
        """Which prompt's row of the cache each row begins with, until it is in a room; None if the cache has a row for each."""
        self._shared = True
        super().__init__(sampler, inputs, group_size, beside)

    def _expand(self, prompt_N: torch.Tensor) -> None:
        if self._shared:
            self.from_N = prompt_N
        else:
            super()._expand(prompt_N)

    def _select(self, kept_N: torch.Tensor) -> None:
        if self.room is not None:
            self._enter(kept_N, self.room.mask_NS[kept_N], self.room.shift_N[kept_N])
        elif self.from_N is not None:
            self.from_N = self.from_N[kept_N]
            self.mask = None if self.mask is None else self.mask[kept_N]
        else:
            super()._select(kept_N)

    def _enter(self, from_N: torch.Tensor, mask_NL: torch.Tensor | None, shift_N: torch.Tensor) -> None:
        """To a room with these rows of the cache."""
        more = self.max_tokens - self.fed
        self.room = self.graphs.enter(self.cache.layers, from_N, self.length, more, mask_NL, shift_N)
        self.cache = self.room.cache

    def step(self, token_N: torch.Tensor, t: int) -> torch.Tensor:
        here_N = torch.arange(len(self.row_N), device=self.row_N.device)
        self.fed = t
        if self.room is None:
            self.length = self.cache.get_seq_length()
            self._enter(here_N if self.from_N is None else self.from_N, self.mask, self.position_N - (self.length - t))
            self.from_N = self.mask = None
        elif self.length == self.room.tokens:
            self._enter(here_N, self.room.mask_NS[here_N], self.room.shift_N[here_N])
        assert self.room is not None
        self.length, self.fed = self.length + 1, t + 1
        return self.graphs.step(self.room, token_N[self.row_N])

    def again(self, tokens_NT: torch.Tensor) -> torch.Tensor:
        """See `Rows.again`. The cache has no fixed shape until the next token is fed."""
        self.room, self.from_N, self._shared = None, None, False
        return super().again(tokens_NT)


def fit(sampler: Prefiller, graphs: DecodeGraphs) -> bool:
    """Whether the model can be decoded in rooms, as found by trying it once; if not, a warning says why."""
    if graphs.unfit is None:
        try:
            graphs.unfit = _differs(sampler)
        except Exception as error:  # noqa: BLE001  a model that reads its cache otherwise may fail in any way
            graphs.unfit = f"{type(error).__name__}: {shorten(error, 120)}"
        if graphs.unfit:
            kind = type(sampler.policy.model).__name__
            warnings.warn(f"generate.cuda_graphs: a {kind} is decoded without them, as exactly ({graphs.unfit})", stacklevel=2)
    return not graphs.unfit


def _differs(sampler: Prefiller) -> str:
    """Why the log-probabilities after tokens fed in a room differ from those without; empty if they don't."""
    policy, can = sampler.policy, sampler.policy.family.capabilities
    if not can.packs or policy.blank.positions is None:
        return "it can't be told positions"
    longer = policy.encode(Prompt(messages=[user_message(TEXTS[1], *policy.family.samples())]))
    inputs, group_size, tokens = [policy.blank, *([longer] if can.pads else [])], 2, 3
    graphs = DecodeGraphs(policy, len(inputs) * group_size)
    graphs.failure = "a trial"
    plain, fixed = Rows(sampler, inputs, group_size), RoomRows(sampler, inputs, group_size, graphs, tokens)
    kinds = {type(layer).__name__ for layer in fixed.cache.layers if type(layer) not in KINDS}
    if kinds or getattr(fixed.cache, "position_ids", None) is not None:
        return f"its cache has {', '.join(sorted(kinds)) or 'positions'}"
    bound, logits = BOUNDS[policy.model.get_input_embeddings().weight.dtype], plain.logits
    places: set[tuple[int, ...]] = set()
    """Where the states of recurrent layers were: a graph reads and writes them where they were when it was captured."""
    for t in range(tokens):
        token_N = policy.distribution(logits, 1.0).topk(len(logits)).indices.diagonal()  # another one for each row
        logits, found = plain.step(token_N, t), fixed.step(token_N, t)
        assert fixed.room is not None
        places.add(tuple(state.data_ptr() for state in fixed.room.states()))
        wanted, own = (x.float().log_softmax(-1) for x in (logits, found))
        if not (gap := float((own - wanted).abs().max() / (1 + wanted.abs().max()))) <= bound:
            return f"log-probabilities differ by {gap:.1e}"
    return "its states move" if len(places) > 1 else ""

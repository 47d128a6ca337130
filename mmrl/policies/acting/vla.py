"""Vision-language-action models: pictures, an instruction and the robot's state -> a chunk of actions.

Actions are tokens (the last ids of the vocabulary), decoded one by one or in parallel in slots behind the prompt; or they come
from a head on hidden states (normal, l1, flow). Sampling and updates use the same masked distribution at the same temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import DynamicCache

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.tokens import TokenKind
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting import vla_options
from mmrl.policies.acting.action_tokens import ActionTokens
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.heads import Flow, Head, Laplace, Normal, StateProjector, Tokens, categorical, own_modules
from mmrl.policies.acting.look import read_once
from mmrl.policies.acting.randomness import CallRandomness, several
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.acting.seeing import Inputs, Seeing
from mmrl.policies.acting.vla_options import DEFAULTS, SPREADS, VLAOptions, published
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.lora import some_outputs
from mmrl.policies.openvla import components
from mmrl.policies.vlm.embedding import embeddings_replaced
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.known_families import OpenVLAFamily
from mmrl.policies.vlm.vlm import VLM, prefix_mask

Sight = Literal["before", "slots", "all"]
"""What the tokens behind a prompt see of each other: those before them; all; or `all` in both directions, the prompt too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPrompts:
    """n prompts that were read, to which bins are fed one after the other. Padding is on the left."""

    hidden_nH: torch.Tensor
    """At their ends."""
    cache: DynamicCache
    padding_nS: torch.Tensor | None
    """int64: 0 for padding, if there is some."""
    following: torch.Tensor
    """int64 [axes, n]: the next positions."""


class VLA(ActingPolicy):
    """A `VLM` with actions. `policy.model` is a VLM's checkpoint, or a folder that this class saved."""

    layered = replays = True
    unread = frozenset({"chat_template"})
    options_class = VLAOptions
    free = frozenset({"cameras", "flow_steps"})
    choice_settings = frozenset({"dims", "chunk", "head", "bins", "binning", "flow_steps"})

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        own = VLAOptions(**given)
        dims, chunk, asked = own.dims, own.chunk, own.asked()
        self.dims, self.chunk, self.history = dims, chunk, own.history
        beside = published(config, own.statistics)
        way = DEFAULTS | beside.options | asked
        self.use_statistics(beside.statistics, own)
        self.check_state_statistics(way["state"], needed=True)
        beside.check(way, dims)
        dense = config.model_copy(update={"attn_implementation": config.dense_attention})  # its rows have masks of their own
        self.vlm = VLM(dense, device=device, seed=seed, source=source)
        self.device, self.family = self.vlm.device, _acting_family(self.vlm)
        way = DEFAULTS | self.family.acting() | beside.options | asked
        self.head_kind, self.decoding, self.state, self.flow_steps = way["head"], way["decoding"], way["state"], own.flow_steps
        if self.head_kind != "tokens" and self.decoding == "one-by-one":
            self.decoding = "parallel"  # OpenVLA's default is for its tokens
        look = {name: way[name] for name in ("size", "crop", "lower_case")}
        look |= {"cameras": own.cameras, "text": own.prompt, "history": own.history}
        self.seeing = Seeing(self.vlm, self.family, state=self.state > 0, **look)
        self.scale = vla_options.scale_of(self.head_kind, own.scale)
        self.tokens = ActionTokens(bins=way["bins"], kind=way["binning"])
        each = self.head_kind == "tokens" or self.decoding == "oft"  # a slot for each number of an action
        self.slots = dims * chunk if each else chunk
        self._place_ids(self.family.action_end, way["bins"])
        wide = self.vlm.model.config.get_text_config().hidden_size
        self.width = vla_options.width_of(wide, dims, self.head_kind, self.decoding)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.head = self._made_head(wide, way.get("spread") or SPREADS.get(self.head_kind, 0.0))
            self.own = nn.ModuleDict({"head": self.head})
            if self.state:
                self.own["state"] = StateProjector(self.state, wide)
        self.own = self.own.to(self.device)
        self.model = nn.ModuleDict({"vlm": self.vlm.model, "own": self.own})
        place = source or Path(config.model)
        if (place / SETTINGS).is_file():
            self.load(place)
        else:
            self._fill(beside.components or components.Components())

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """See `VLM.check`; and what lies beside the weights of a published checkpoint."""
        VLM.check(config)
        vla_options.check_files(config)

    @staticmethod
    def own_names(config: PolicyConfig) -> list[str]:
        """Those of the head, and of a projector of the robot's state, which a checkpoint may have unasked."""
        with torch.device("meta"):
            network = config.options.get("scale") == "network"
            made = own_modules(vla_options.head_of(config), 1, 1, 1, network=network, state=1)
        return [f"own.{name}" for name, _ in made.named_parameters()]

    @classmethod
    def token_kind(cls, config: PolicyConfig) -> TokenKind:
        return TokenKind.NUMBER if vla_options.head_of(config) == "tokens" else TokenKind.ACTION

    @property
    def lora(self) -> Any:
        """Those of the `VLM`, which saves them."""
        return self.vlm.lora

    @lora.setter
    def lora(self, config: Any) -> None:
        self.vlm.lora = config

    def _place_ids(self, rows: int, bins: int) -> None:
        """Set the ids of the bins, at the end of the vocabulary, and before them an id for each slot."""
        ids = self.tokens.ids(rows)
        first = rows - bins - self.slots
        if first < 0 or self.tokens.bins > 1024:
            raise UserError(f"policy.options.bins = {bins}: the vocabulary has {rows} ids: give fewer bins")
        self.action_ids = torch.tensor(ids, device=self.device)
        self.slot_ids = torch.arange(first, first + self.slots, device=self.device)
        if self.decoding == "oft":  # its slots are empty, and the end of the text follows them
            self.slot_ids = torch.cat([self.slot_ids, self.slot_ids.new_tensor([self.vlm.tokenizer.eos_token_id])])

    def _made_head(self, wide: int, spread: float) -> Head:
        features = wide * (self.dims if self.decoding == "oft" else 1)
        if self.head_kind == "tokens":
            return Tokens(self.tokens, self.dims)
        if self.head_kind == "flow":
            return Flow(features, self.dims, self.flow_steps)
        if self.head_kind == "l1":
            return Laplace(features, self.dims, wide, spread, network=self.scale == "network")
        return Normal(features, self.dims, spread)

    def settings(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"kind": "vla", "head": self.head_kind, "dims": self.dims, "chunk": self.chunk}
        if self.head_kind == "tokens" or self.decoding == "oft":
            found["decoding"] = self.decoding
        if self.head_kind == "tokens":
            found |= {"bins": self.tokens.bins, "binning": self.tokens.kind}
        if self.scale != "number":
            found["scale"] = self.scale
        if isinstance(self.head, Flow):
            found["flow_steps"] = self.head.steps
        look = self.seeing
        found |= {"prompt": look.text, "lower_case": look.lower_case, "state": self.state}
        if self.history:
            found["history"] = self.history
        return found | {"cameras": look.cameras, "size": look.size, "crop": look.crop}

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        read = {(text, self.seeing.sizes(track)) for track in tracks for text in track.told}
        return max((len(self.seeing.prompt(*one).ids) for one in read), default=0) + len(self.slot_ids)

    # -- a pass -----------------------------------------------------------------------------------------------------------

    def _hidden(self, seen: Observation, behind: torch.Tensor, at_nM: torch.Tensor, sight: Sight) -> torch.Tensor:
        """Hidden states [n, M, H] at places relative to the prompts' last tokens. behind: ids after the prompts."""
        read = self.seeing.read(seen, behind)
        segment = read.segment_nS
        mask = prefix_mask(segment, self.vlm.model.dtype)
        if sight != "before":
            least = 1 if sight == "slots" else 0
            mask.masked_fill_((segment[:, None, :, None] >= least) & (segment[:, None, None, :] >= least), 0.0)
        count, size = read.ids_nS.shape
        source = (torch.arange(count, device=self.device)[:, None] * size + read.last_n[:, None] + at_nM).flatten()
        with self._placed(seen, read, empty=sight == "all"):
            hidden = self.family.hidden(read.ids_nS, mask, read.positions, {**read.media, **read.token_types})
        return hidden.flatten(0, 1).index_select(0, source).view(count, at_nM.shape[1], -1)

    def _placed(self, seen: Observation, read: Inputs, empty: bool = False) -> AbstractContextManager[None]:
        """Within it, the robot's state stands at its place; with `empty`, the slots have embeddings of zero."""
        if not self.state and not empty:
            return nullcontext()
        table: Any = self.vlm.model.get_input_embeddings()
        vectors = torch.zeros(0, table.weight.shape[1], device=self.device)
        if self.state:
            state = self.normalised_state(seen, self.state)
            if self.statistics is not None:
                state = state.clamp(-1, 1)  # as in OpenVLA-OFT: a state beyond the data looks like its end
            vectors = self.own["state"](state)
        behind = read.segment_nS == 1
        slots = behind & (behind.cumsum(1) <= self.slots) if empty else torch.zeros_like(behind)
        return embeddings_replaced(table, read.state_nS, vectors, slots)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the bins alone, [..., B], as the model has them."""
        head = self.family.head
        return head.after(some_outputs(head.out, hidden, self.action_ids))

    @read_once
    def features(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        count, empty = len(seen), self.decoding == "oft"
        first = 0 if empty else 1  # in OpenVLA-OFT the hidden state before a slot gives its number, as the next token
        at = torch.arange(first, first + self.slots, device=self.device).expand(count, -1)
        hidden = self._hidden(seen, self.slot_ids.expand(count, -1), at, "all" if empty else "slots")
        states = hidden[:, : self.slots // self.chunk].flatten(1)
        if self.head_kind == "tokens":
            return self._logits(hidden).view(count, self.chunk, self.dims, -1), states
        return hidden.view(count, self.chunk, -1), states

    # -- one token after the other ----------------------------------------------------------------------------------------

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        if self.decoding != "one-by-one":
            return super().choose(seen, draw, temperature, guidance)
        uniform = draw.uniform(0, self.slots) if temperature else None
        told = self._read_prompts(seen)
        if guidance is None:
            return self.replayed(self._one_by_one, told, uniform, temperature)
        return self._one_by_one(told, uniform, temperature, guidance, self._read_prompts(guidance.plain))

    def _one_by_one(
        self,
        told: ReadPrompts,
        uniform: torch.Tensor | None,
        temperature: float,
        guidance: Guidance | None = None,
        plain: ReadPrompts | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """What `choose` returns. plain: the prompts that don't guide. The caches of both grow."""
        chosen: list[torch.Tensor] = []
        logprobs: list[torch.Tensor] = []
        for m in range(self.slots):
            logits = self._following(told, chosen)
            if guidance is not None and plain is not None:
                logits = guidance.mixed(logits, self._following(plain, chosen))
            one, logprob = categorical(logits, temperature, None if uniform is None else uniform[:, m])
            chosen.append(one)
            logprobs.append(logprob)
        shape = (len(told.hidden_nH), self.chunk, self.dims)
        bins = torch.stack(chosen, 1).view(shape)
        return self.tokens.action_of(bins), bins, torch.stack(logprobs, 1).view(shape), told.hidden_nH

    @torch.no_grad()
    def candidates(
        self, seen: Observation, seeds_n: torch.Tensor, calls_n: torch.Tensor, many: int, temperature: float = 1.0
    ) -> torch.Tensor:
        """One pass for all samples of a row; tokens that see those before them take a pass for each."""
        if self.decoding == "one-by-one":
            return super().candidates(seen, seeds_n, calls_n, many, temperature)
        seen, draw = seen.on(self.device), several(seeds_n, calls_n, many).to(self.device)
        found = self.head.sample(self.features(seen)[0].repeat_interleave(many, 0), draw, temperature)[0]
        again_N = torch.arange(len(seen)).repeat_interleave(many)
        return self.simulated(found, seen.rows(again_N)).clamp(-1, 1).unflatten(0, (-1, many))

    def _following(self, read: ReadPrompts, chosen: Sequence[torch.Tensor]) -> torch.Tensor:
        """Logits of the bins [n, B] after those that were chosen, [n] each, of which the last is fed."""
        if not chosen:
            return self._logits(read.hidden_nH)
        fed, padding = len(chosen), read.padding_nS
        if padding is not None:
            padding = torch.cat([padding, padding.new_ones(len(padding), fed)], 1)
        places = (read.following + fed - 1)[..., None]
        return self._logits(self._stepped(self.action_ids[chosen[-1]][:, None], padding, places, {}, read.cache))

    def _read_prompts(self, seen: Observation) -> ReadPrompts:
        cache = DynamicCache(config=self.vlm.model.config)
        read = self.seeing.read(seen, None, "left")
        following = (read.positions.amax((0, 2)) + 1).expand(len(read.positions), -1)
        padding = (read.segment_nS == 0).long() if read.padded else None
        with self._placed(seen, read):
            hidden = self._stepped(read.ids_nS, padding, read.positions, {**read.media, **read.token_types}, cache)
        return ReadPrompts(hidden_nH=hidden, cache=cache, padding_nS=padding, following=following)

    def _stepped(
        self,
        ids: torch.Tensor,
        padding: torch.Tensor | None,
        positions: torch.Tensor,
        media: Mapping[str, torch.Tensor],
        cache: Any,
    ) -> torch.Tensor:
        with self.family.padded(padding):
            return self.family.hidden(ids, padding, positions, media, cache)[:, -1]

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if self.decoding != "one-by-one":
            return super().scored(calls, temperature)
        bins = calls.choices.flatten(1)
        count = torch.arange(self.slots, device=self.device).expand(len(bins), -1)
        hidden = self._hidden(calls.observation, self.action_ids[bins], count, "before")
        logits = self._logits(hidden).view(*calls.choices.shape, -1)
        return (*self.head.score(logits, calls.choices, temperature), hidden[:, 0])

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        if self.decoding != "one-by-one":
            return self.features(seen)[1]
        nothing = self.action_ids[:1].expand(len(seen), -1)
        return self._hidden(seen, nothing, torch.zeros(len(seen), 1, dtype=torch.long, device=self.device), "before")[:, 0]

    # -- weights ----------------------------------------------------------------------------------------------------------

    def parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        yield from self.vlm.parameters()
        for name, parameter in self.own.named_parameters():
            yield f"own.{name}", parameter

    def save(self, folder: Path) -> None:
        """With the decoding of OpenVLA-OFT, OpenVLA's head, projector and statistics are files as in its checkpoints."""
        super().save(folder)
        self.vlm.save(folder)
        for kind, (module, prefix) in self._components().items():
            components.write(folder, kind, module, prefix)
        if self._as_published and self.statistics is not None:
            found = self.statistics.plain()
            components.write_statistics(folder, found["key"] or "data", found["action"], found.get("state"))

    def load(self, folder: Path) -> None:
        super().load(folder)
        if self._components():
            found, regressed = components.components_of(str(folder)), isinstance(self.head, Laplace)
            components.check_components(str(folder), found, head=regressed, state=self.state, dims=self.dims, saved=True)
            self._fill(found)

    def _fill(self, found: components.Components) -> None:
        """Read the component files that there are."""
        for kind, (module, prefix) in self._components().items():
            file = found.head if kind == components.HEAD else found.state
            if file is not None:
                components.fill(file, module, prefix)

    @property
    def _as_published(self) -> bool:
        return self.decoding == "oft" and isinstance(self.family, OpenVLAFamily)

    def _components(self) -> dict[str, tuple[nn.Module, str]]:
        """Component file -> (the module in it, prefix of its names in the file)."""
        found: dict[str, tuple[nn.Module, str]] = {}
        if self._as_published and isinstance(self.head, Laplace):
            found[components.HEAD] = (self.head.model, "model.")
        if self._as_published and self.state:
            found[components.STATE] = (self.own["state"], "")
        return found

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        elsewhere = {id(p) for module, _ in self._components().values() for p in module.parameters()}
        yield from ((name, p) for name, p in self.own.named_parameters() if id(p) not in elsewhere)


def _acting_family(vlm: VLM) -> Family:
    if not vlm.family.shares_prefix or vlm.family.capabilities.attention != ("full_attention",):
        kind, why = vlm.model.config.model_type, vlm.family.capabilities.why_not
        told = f" ({why})" if why else ""
        raise UserError(
            f"policy.kind = 'vla': models of type {kind} can't act yet{told}: take a Qwen-VL or a checkpoint of OpenVLA"
        )
    return vlm.family

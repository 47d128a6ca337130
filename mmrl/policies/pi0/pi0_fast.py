"""pi0-FAST: a PaliGemma that says a chunk of actions in FAST's tokens, one after the other (Pertsch et al., FAST: Efficient
Action Tokenization for Vision-Language-Action Models, arXiv 2501.09747; lerobot 0.6.1, `PI0FastPolicy`).

n calls, P tokens of pictures and text, F given words, M the room for a call's tokens, B ids that may be sampled, H the width.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from transformers import DynamicCache

from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.tokens import TokenKind
from mmrl.api.transfer import upload_one
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.heads import categorical
from mmrl.policies.acting.options import check_sizes
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS, SHOWN, read_settings
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.layers import cache_argument
from mmrl.policies.lora import adapter_chain, apply_adapters, save_adapters, some_outputs
from mmrl.policies.names import base_name
from mmrl.policies.pi0 import tiny
from mmrl.policies.pi0.action_words import NOTHING, ActionWords, check_room, words_before
from mmrl.policies.pi0.fast_tokens import INSIDE, NAME, FastTokenizer, load_fast
from mmrl.policies.pi0.lerobot_layout import LIMITS, PICTURES, TOKENIZER, Description, Published, published
from mmrl.policies.pi0.lerobot_names import saved_weights
from mmrl.policies.pi0.loading import load_model, statistics_of
from mmrl.policies.pi0.options import Pi0FastOptions
from mmrl.policies.pi0.pi05 import state_words
from mmrl.policies.pi0.planned_fast import ROOM, planned_fast
from mmrl.policies.pi0.reading import PiReader
from mmrl.policies.pi0.tiny_fast import SKIPPED, fast_actions
from mmrl.policies.vlm.linear_logprobs import is_linear, linear_logprobs
from mmrl.policies.vlm.logits import Logits
from mmrl.policies.vlm.vlm import LOGIT_CHUNK

LOOK_EVERY = 8
"""Tokens between looks on a GPU whether all calls have ended, each of which waits for it. What follows an end is left out."""


class Pi0Fast(PiReader):
    """`policy.model` is a folder or hub name in LeRobot's layout, a folder that this class saved, or `tiny:pi0_fast`.

    Pictures, text and a BOS token behind it see each other; an action's tokens see them and those before. So it is where LeRobot
    acts; where it trains, pictures and text don't see the BOS token.

    A choice is a call's tokens, padded with `NOTHING` behind the last. They say the whole chunk, so the log-probability of an
    action alone has no meaning: the loss compares tokens or chunks. A critic reads the BOS token, which sees no action.
    """

    kind: ClassVar = "pi0_fast"
    options_class: ClassVar[type[Any]] = Pi0FastOptions
    free = frozenset({"chunk", "cameras", "text_tokens", "action_tokens", "vocabulary", SHOWN})
    choice_settings = frozenset({"dims", "vocabulary"})
    continuous_dims = 0
    head: Any
    resize = "lerobot"

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        own = Pi0FastOptions(**given)
        self.device, self.lora, self.dims, self.chunk = torch.device(device), config.lora, own.dims, own.chunk
        self.state, self.text, self.cameras, self.crop = own.state, own.prompt, list(own.cameras), own.crop
        files = published(adapter_chain(config.model)[1])
        self.use_statistics(statistics_of(config, files, own.statistics, own.state), own)
        self.check_state_statistics(own.state)
        self.text_tokens = own.text_tokens or (files.text_tokens if files else LIMITS[self.kind])
        place = source or Path(config.model)
        self.origin, self.shown = files, dict(files.cameras if files else read_settings(place).get(SHOWN, {}))
        self.cameras = self.cameras or list(files.cameras if files else ())
        self.base = base_name(config.model, seed, tiny.NAMES[self.kind].full_name)
        adapters, name = adapter_chain(str(source) if source and not config.lora else config.model)
        fast = _fast(name, own.action_tokenizer, files)
        model, self.tokenizer = load_model(config, self.kind, name, own.tokenizer, files, seed)
        apply_adapters(model, config.lora, adapters, source, seed)
        self.model = model.to(self.device).eval()
        settings = self.model.config
        most = {"chunk": settings.chunk_size, "dims": settings.max_action_dim, "state": settings.max_state_dim}
        check_sizes(self.kind, {name: (getattr(own, name), size) for name, size in most.items()})
        self.width, self.side = int(settings.vlm_config.text_config.hidden_size), settings.vlm_config.vision_config.image_size
        said = files.config if files else {"validate_action_token_prefix": False}
        first = self.tokenizer.vocab_size - 1 - int(said.get("fast_skip_tokens", SKIPPED))
        self.head = ActionWords(
            fast=fast,
            before=words_before(self.tokenizer),
            end=check_room(name, self.tokenizer, fast, first),
            first=first,
            given=own.vocabulary == "actions",
            checked=bool(said.get("validate_action_token_prefix", True)),
            room=own.action_tokens or int(said.get("max_decoding_steps", ROOM)),
            ahead=settings.chunk_size,
            dims=self.dims,
        )
        ids = torch.tensor(self.head.ids if self.head.given else [], device=self.device)
        self.action_ids = ids
        """int64 [B]: the ids that may be sampled; empty: all."""
        if (place / SETTINGS).is_file():
            self.load(place)

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        return planned_fast(cls, config)

    @classmethod
    def token_kind(cls, config: PolicyConfig) -> TokenKind:
        return TokenKind.CHUNK_WORD

    @property
    def ahead(self) -> int:
        """All actions that tokens say: those that are not executed are learned as well."""
        return int(self.head.ahead)

    @property
    def guides(self) -> bool:
        return True

    def choice_terms(self) -> dict[str, Any]:
        terms = {"actions that its tokens say": self.ahead, "action tokenizer": self.head.fast.digest, "end": self.head.end}
        return super().choice_terms() | terms | {"first token": self.head.first}

    def settings(self) -> Mapping[str, Any]:
        found = {"kind": self.kind, "dims": self.dims, "chunk": self.chunk, "state": self.state, "cameras": self.cameras}
        found |= {"prompt": self.text, "crop": self.crop, "text_tokens": self.text_tokens, "action_tokens": self.head.room}
        found |= {"vocabulary": "actions" if self.head.given else "all"}
        return found | ({SHOWN: self.shown} if self.shown else {})

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        """Each moment's state has words of its own, so all are read."""
        longest = 0
        for track in tracks:
            seen = Observation(images={}, state=track.state, instructions=track.told[:-1])
            if track.state is not None:
                seen = Observation(images={}, state=track.state[:-1], instructions=seen.instructions)
            said = max(map(len, self._rows(seen)), default=0)
            tokens = self.head.room if track.tokens_T is None else int(track.tokens_T.max())
            longest = max(longest, said + tokens + len(self.cameras or track.images) * self._picture_tokens)
        return longest + self._given

    @property
    def _picture_tokens(self) -> int:
        eye = self.model.config.vlm_config.vision_config
        return int((eye.image_size // eye.patch_size) ** 2)

    @property
    def _given(self) -> int:
        """F."""
        return len(self.head.before) if self.head.given else 0

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _rows(self, seen: Observation) -> list[list[int]]:
        """The words that each call reads, and a BOS token. Without a state its bins are left out, which LeRobot doesn't know."""
        said = [f"Task: {self._said(text)}" for text in seen.instructions]
        if self.state:
            bins = state_words(self.normalised_state(seen, self.state))
            said = [f"{task}, State: {words}" for task, words in zip(said, bins, strict=True)]
        return [[*self._words(f"{text};\n"), self.tokenizer.bos_token_id] for text in said]

    def _read(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        """(embeddings of pictures, words, the BOS token and the F given words [n, P + F, H], which of the P are no padding [n,
        P]). Padding is before the BOS token."""
        pixels = self._pictures(seen)
        rows = self._rows(seen)
        ids_nP, real_nP = self._padded([row[:-1] for row in rows], max(map(len, rows)) - 1)
        behind = upload_one(torch.tensor([rows[0][-1], *self.head.before[: self._given]]), self.device).expand(len(rows), -1)
        embeds = [self.model.embed_pictures(pixels), self.model.embed(torch.cat([ids_nP, behind], 1))]
        shown = real_nP.new_ones(len(rows), embeds[0].shape[1])
        return torch.cat(embeds, 1).to(self._dtype), torch.cat([shown, real_nP, real_nP.new_ones(len(rows), 1)], 1)

    def _places(self, real_nP: torch.Tensor, more: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(mask [n, 1, S, S], positions [n, S]) of P tokens that see each other and `more` that see them and those before."""
        size = real_nP.shape[1] + more
        place = torch.arange(size, device=self.device)
        before = (place < real_nP.shape[1]) | (place <= place[:, None])
        before[: real_nP.shape[1]] = place < real_nP.shape[1]
        real_nS = torch.cat([real_nP, real_nP.new_ones(len(real_nP), more)], 1)
        mask = before & real_nS[:, None]
        return self._as_attention_wants(mask[:, None]), (real_nS.long().cumsum(1) - 1).clamp_min(0)

    def _hidden(self, embeds: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any = None) -> torch.Tensor:
        """[n, S, H]."""
        language = self.model.model.vlm.language_model
        found: torch.Tensor = language(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=positions,
            use_cache=cache is not None,
            **({} if cache is None else {cache_argument(language): cache}),
        ).last_hidden_state
        return found

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., B]."""
        head = self.model.lm_head
        found: torch.Tensor = some_outputs(head, hidden, self.action_ids) if self.head.given else head(hidden)
        return found

    # -- acting and learning ----------------------------------------------------------------------------------------------

    def _following(self, seen: Observation) -> Generator[tuple[torch.Tensor, torch.Tensor], torch.Tensor, None]:
        """(logits of the next token [n, B], hidden states of the BOS token [n, H]), again after each id [n] that is sent."""
        embeds, real_nP = self._read(seen)
        mask, positions = self._places(real_nP, self._given)
        cache = DynamicCache(config=self.model.config.vlm_config.text_config)
        hidden = self._hidden(embeds, mask, positions, cache)
        state, last, following = hidden[:, real_nP.shape[1] - 1], hidden[:, -1], positions[:, -1:] + 1
        seen_nS = torch.cat([real_nP, real_nP.new_ones(len(real_nP), self._given)], 1)
        while True:
            sent = yield self._logits(last), state
            seen_nS = torch.cat([seen_nS, seen_nS.new_ones(len(seen_nS), 1)], 1)
            one = self.model.embed(sent[:, None]).to(self._dtype)
            last = self._hidden(one, self._as_attention_wants(seen_nS[:, None, None]), following, cache)[:, -1]
            following = following + 1

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        count, room = len(seen), self.head.room
        uniform = draw.uniform(0, room) if temperature else None
        told, plain = self._following(seen), None if guidance is None else self._following(guidance.plain)
        (logits, states), aside = next(told), None if plain is None else next(plain)[0]
        choices = torch.full((count, room), NOTHING, device=self.device)
        logprobs = torch.zeros(count, room, device=self.device)
        goes_on = torch.ones(count, dtype=torch.bool, device=self.device)
        for m in range(room):
            if guidance is not None and aside is not None:
                logits = guidance.mixed(logits, aside)
            one, logprob = categorical(logits, temperature, None if uniform is None else uniform[:, m])
            chosen = self.action_ids[one] if self.head.given else one
            choices[:, m] = torch.where(goes_on, chosen, NOTHING)
            logprobs[:, m] = logprob.where(goes_on, 0.0)
            goes_on = goes_on & (chosen != self.head.end)
            look = self.device.type == "cpu" or (m + 1) % LOOK_EVERY == 0
            if m + 1 == room or (look and not goes_on.any()):
                break
            logits, _ = told.send(chosen)
            aside = None if plain is None else plain.send(chosen)[0]
        return self.head.actions_of(choices)[:, : self.chunk], choices, logprobs[:, None], states

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(logprobs [S, 1, M], entropy [S, 1, M], states [S, H]): those of tokens, 0 behind the last."""
        there = calls.choices != NOTHING
        longest = int(there.sum(1).max())
        at = there.nonzero(as_tuple=True)  # once: each index with a mask would wait for the GPU, and so would its gradient
        ids = calls.choices[:, :longest].clamp_min(0)
        embeds, real_nP = self._read(calls.observation)
        embeds = torch.cat([embeds, self.model.embed(ids[:, :-1]).to(self._dtype)], 1)
        hidden = self._hidden(embeds, *self._places(real_nP, self._given + longest - 1))
        first = real_nP.shape[1] - 1
        target = self.head.index_of(ids) if self.head.given else ids
        found = self._scores(hidden[:, first + self._given :][at], target[at], temperature)
        whole = (torch.zeros(calls.choices.shape, device=self.device) for _ in found)
        logprobs, entropy = (zeros.index_put(at, values) for zeros, values in zip(whole, found, strict=True))
        return logprobs[:, None], entropy[:, None], hidden[:, first]

    def _scores(self, hidden_LH: torch.Tensor, target_L: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probabilities [L], entropies [L]), float32."""
        head = Logits(self.model.lm_head, "plain", 0.0)
        at_once = max(1, LOGIT_CHUNK // self.model.config.vlm_config.text_config.vocab_size)
        if not self.head.given and at_once < len(target_L) and is_linear(head):
            bias_V = hidden_LH.new_zeros(len(head.out.weight), dtype=torch.float32)
            options: dict[str, Any] = {"temperature": temperature, "at_once": at_once, "entropy_gradient": True}
            return linear_logprobs(hidden_LH, head, target_L, bias_V, **options)
        logprobs = (self._logits(hidden_LH).float() / temperature).log_softmax(-1)
        return logprobs.gather(-1, target_L[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)

    def unsampled(self, choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return torch.full((len(choices), 1, self.head.room), torch.nan, device=choices.device), (choices != NOTHING).sum(1)

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        embeds, real_nP = self._read(seen)
        size = real_nP.shape[1]
        return self._hidden(embeds[:, :size], *self._places(real_nP, 0))[:, -1]

    # -- weights ----------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """A folder that LeRobot loads, with the settings and both tokenizers; with `policy.lora`, its adapters."""
        super().save(folder)
        if self.lora:
            save_adapters(self.model, folder, self.base)
        else:
            save_file(saved_weights(self.model, self.kind), folder / "model.safetensors", metadata={"format": "pt"})
            self._description().write(folder)
            self.head.fast.save(folder / INSIDE)
        self.tokenizer.save_pretrained(folder)

    def _description(self) -> Description:
        kept = self.origin.config if self.origin else {}
        words = self.origin.tokenizer if self.origin else TOKENIZER
        return Description(
            kind=self.kind,
            dims=self.dims,
            state=self.state,
            own={
                "n_action_steps": self.ahead,  # LeRobot decodes as many, which must be those that the tokens say
                "max_decoding_steps": self.head.room,
                "max_action_tokens": max(int(kept.get("max_action_tokens", ROOM)), self.head.room),
                "fast_skip_tokens": self.tokenizer.vocab_size - 1 - self.head.first,
                "validate_action_token_prefix": self.head.checked,
                "action_tokenizer_name": kept.get("action_tokenizer_name", NAME),
                "text_tokenizer_name": words,
            },
            text_tokens=self.text_tokens,
            dtype="bfloat16" if self._dtype == torch.bfloat16 else "float32",
            cameras={name: self.shown.get(name, PICTURES + name) for name in self.cameras} or self.shown,
            statistics=self.statistics,
            network=self.model.config,
            tokenizer=words,
            kept=kept,
        )

    def _own(self) -> Any:
        """LeRobot's file has all weights."""
        return iter(())


def _fast(name: str, given: str, files: Published | None) -> FastTokenizer:
    """The action tokenizer of a model."""
    if given:
        return load_fast(given)
    if name.startswith("tiny:"):
        return fast_actions()
    inside = Path(name) / INSIDE
    if inside.is_dir():
        return load_fast(str(inside))
    return load_fast(files.config.get("action_tokenizer_name", NAME) if files else NAME)

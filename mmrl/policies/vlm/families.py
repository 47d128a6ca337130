"""What differs between model families: positions, coordinate format, banned ids, and how the model is run.

`Family` serves any transformers image-text-to-text model. What a model can do is found by trying it, see `probe`; a subclass says
what can't be found so, see `known_families`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from mmrl.api.errors import UserError
from mmrl.api.media.sounds import Waveform
from mmrl.policies.batches import MicroBatch, Shared
from mmrl.policies.layers import cache_argument
from mmrl.policies.resizing import center_crop, resize
from mmrl.policies.vlm import attention
from mmrl.policies.vlm.capabilities import UNKNOWN, Capabilities
from mmrl.policies.vlm.logits import Logits
from mmrl.policies.vlm.packed_rows import PackedRows, packed_rows, padded_rows
from mmrl.policies.vlm.recurrent import share_states
from mmrl.policies.vlm.row_lengths import ignore_row_lengths
from mmrl.policies.vlm.slices import at, indivisible, shared_pass
from mmrl.policies.vlm.vision_cache import showing

_VISION_SETTING = re.compile(r"(image|video|vision|audio|boi|eoi|fake|global).*token.*(id|index)$")
_VISION_TOKEN = re.compile(r"image|video|vision|audio|img|patch|media|<row_\d+_col|^TILE|slice(_id)?>", re.IGNORECASE)


AXES = ("time", "height", "width")
"""Of positions; HunYuan-VL has four."""


class Family:
    """Any model: exact, and as fast as what it can do allows."""

    completion_type = 0
    """Value of `token_type_ids` and the like for a completion's tokens."""
    has_turns = True
    """A conversation may go on after an answer."""
    sees_replies = True
    """An environment's reply may have pictures, too."""
    sees = True
    """It takes pictures."""
    hears = False
    """It takes sounds."""
    no_videos = ""
    """Why videos can't be shown although the processor takes them."""
    shares_prompt = True
    """Try whether a group may share its prompt."""
    placeholders: tuple[str, ...] = ()
    """Tokens that stand for pictures, if neither the config nor their names say so."""
    beside_each_other: tuple[str, ...] = ()
    """Arguments in which pictures lie beside each other along the last axis, and not the first. Rollouts hold them with the last
    axis first, like all others."""
    on_host: tuple[str, ...] = ()
    """Arguments that the model reads as numbers: they stay on the host."""

    def __init__(self, model: Any, processor: Any, capabilities: Capabilities = UNKNOWN) -> None:
        """capabilities: of another model with this configuration; by default the slow way is taken until `use` is called."""
        self.model = model
        self.processor = processor
        ignore_row_lengths(model)
        self.use(capabilities)

    def use(self, capabilities: Capabilities) -> None:
        """Run the model in the fastest way that these allow."""
        self.capabilities = capabilities
        attention.use(self.model, capabilities.way)
        share_states(self.model, capabilities.recurrent, capabilities.continues)

    def samples(self) -> tuple[Any, ...]:
        """A small picture if the model sees, and a short sound if it hears, to try it with."""
        from PIL import Image

        found: list[Any] = [Image.new("RGB", (64, 64), (90, 140, 40))] if self.sees else []
        if self.hears:
            rate = self.processor.feature_extractor.sampling_rate
            tone_T = np.sin(2 * np.pi * 440 * np.arange(rate // 4) / rate)
            found.append(Waveform(samples_T=tone_T.astype(np.float32), rate=rate))
        return tuple(found)

    @property
    def goes_on(self) -> bool:
        """A conversation may go on after an answer, and with these capabilities."""
        return self.has_turns and self.capabilities.moves_on

    @property
    def shares_prefix(self) -> bool:
        """Rows may hold `[prompt][completion 1]..[completion G]`."""
        return self.capabilities.packs

    def share_rows(self, size: int) -> None:
        """Prepare the model for rows that so many ranks share. Raises UserError if it can't do that."""
        config, kind = self.model.config.get_text_config(), self.model.config.model_type
        why = "" if self.capabilities.packs else f"every completion needs a row of its own: {self.capabilities.why_not}"
        why = why or (f"{', '.join(self.capabilities.recurrent)} have a state" if self.capabilities.recurrent else "")
        why = why or indivisible(size, config.num_attention_heads, config.num_key_value_heads)
        if why := why or attention.share_rows(self.model):
            raise UserError(f"compute.sequence_parallel = {size} can't divide the rows of a {kind} model ({why}): leave it out")

    @property
    def pads_prompts(self) -> bool:
        """Prompts of several lengths may be computed together, padded on the left."""
        return self.capabilities.pads

    def banned_ids(self) -> list[int]:
        """Ids that must never be sampled: vision placeholders, and rows of the embedding without a token."""
        tokenizer = self.processor.tokenizer
        found = {
            v
            for config in (self.model.config, self.model.config.get_text_config())
            for k, v in config.to_dict().items()
            if isinstance(v, int) and _VISION_SETTING.search(k)
        }
        found |= {i for t, i in tokenizer.get_added_vocab().items() if _VISION_TOKEN.search(t) or t in self.placeholders}
        found |= set(range(self.model.get_output_embeddings().weight.shape[0])) - set(tokenizer.get_vocab().values())
        return sorted(i for i in found if i >= 0)

    def positions(self, ids_S: torch.Tensor, encoded: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Rotary positions of a prompt, int64 [axes, S]; None lets the model count them itself."""
        if not self.capabilities.packs:
            return None
        if not self.has_axes:
            return torch.arange(len(ids_S))[None]
        asked = inspect.signature(self.base.get_rope_index).parameters.keys() & encoded.keys() - {"input_ids", "attention_mask"}
        seen = {k: encoded[k] for k in sorted(asked)}
        if seen.keys() <= {"mm_token_type_ids"}:
            rotary = self.model.config.get_text_config().rope_parameters or {}
            return torch.arange(len(ids_S)).expand(len(rotary.get("mrope_section") or AXES), -1)
        if "second_per_grid_ts" in seen:  # in float64, as vLLM computes times: float32 rounds some to the position before
            seen["second_per_grid_ts"] = torch.as_tensor(seen["second_per_grid_ts"]).double()
        counted: torch.Tensor = self.base.get_rope_index(ids_S[None], **seen)[0][:, 0]
        return self.after_media(counted, encoded["mm_token_type_ids"][0]) if "video_grid_thw" in seen else counted

    def after_media(self, positions: torch.Tensor, types_S: torch.Tensor) -> torch.Tensor:
        """In prompts with videos, positions after a picture or video continue behind its largest position on any axis: Wang et
        al. 2024, Qwen2-VL, section 2.1. transformers 5.3 to 5.24 leaves the time axis out, so that text overlaps the frames of a
        long video."""
        positions = positions.clone()
        for start in ((types_S[1:] != types_S[:-1]).nonzero()[:, 0] + 1).tolist():
            positions[:, start:] += positions[:, :start].max() + 1 - positions[:, start].min()
        return positions

    @property
    def has_axes(self) -> bool:
        """Positions have axes for time, height and width (M-RoPE), which the model computes from the grids of its pictures."""
        return hasattr(self.base, "get_rope_index")

    @property
    def counts_by_types(self) -> bool:
        """These positions are counted by the types of tokens."""
        return self.has_axes and "mm_token_type_ids" in inspect.signature(self.base.get_rope_index).parameters

    @property
    def base(self) -> Any:
        """The model without its output head; all of it, if it puts pictures in among the text itself (Llama 4)."""
        return self.model.base_model if self.model.base_model is not self.model else getattr(self.model, "model", self.model)

    def model_sizes(self, encoded: Mapping[str, torch.Tensor]) -> tuple[tuple[int, int], ...]:
        """(width, height) of each image as the model sees it, in pixels; empty if unknown."""
        return ()

    @property
    def action_end(self) -> int:
        """One past the last id that can stand for an action."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def acting(self) -> dict[str, Any]:
        """Options of `VLA` in which the family differs from others."""
        return {}

    def cropped(self, pictures: torch.Tensor, share: float, height: int, width: int) -> torch.Tensor:
        """uint8 [n, 3, H, W] -> uint8 [n, 3, height, width]: the middle of each, with this share of its area."""
        return resize(center_crop(pictures, share), height, width)

    def state_at(self, ids_S: torch.Tensor) -> int:
        """Index in a prompt at which the embedding of a robot's state is put in: at its end."""
        return len(ids_S)

    # -- running the model ------------------------------------------------------------------------------------------------

    def hidden(
        self,
        ids_BS: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor,
        media: Mapping[str, torch.Tensor],
        cache: Any = None,
    ) -> torch.Tensor:
        """The last hidden states [B, S, H]. positions: int64 [axes, B, S]. cache: read and extended."""
        base = self.base
        given = {"input_ids": ids_BS, "attention_mask": mask, cache_argument(base): cache, "use_cache": cache is not None}
        given |= {"position_ids": positions if self.has_axes else positions[0], **self.with_media(media)}
        if base is not self.model:
            found: torch.Tensor = base(**given).last_hidden_state
            return found
        seen: list[torch.Tensor] = []
        hooks = (
            decoder_of(base).register_forward_hook(lambda module, args, output: seen.append(output.last_hidden_state)),
            self.model.get_output_embeddings().register_forward_pre_hook(last_tokens),
        )
        try:
            base(**given, logits_to_keep=1)
        finally:
            for hook in hooks:
                hook.remove()
        return seen[-1]

    @property
    def head(self) -> Logits:
        return Logits.of(self.model, self.capabilities.head)

    def values(self, micro: MicroBatch, at_Q: torch.Tensor | None = None) -> tuple[torch.Tensor, Any, torch.Tensor | None]:
        """Predictions of a micro-batch's L targets: (values, head, states); head(values) are the logits [L, V], states the last
        hidden states [Q, H] at the flat positions `at_Q`, if they are given."""
        with showing(micro.media, micro.pictures):
            return self._values(micro, at_Q)

    def _values(self, micro: MicroBatch, at_Q: torch.Tensor | None) -> tuple[torch.Tensor, Any, torch.Tensor | None]:
        if micro.positions is None:
            return self._separate(micro, at_Q)
        rows = PackedRows(micro.segment_BS, type(self.model.config.get_text_config()))
        if micro.shared is not None:
            return self._shared(rows, micro, micro.shared, at_Q)
        with packed_rows(rows):
            hidden = self.packed(rows, micro.ids_BS, micro.positions, micro.media).flatten(0, 1)
        # not hidden[source_L]: the prompt's last token is taken once per completion, and a plain index adds such gradients up
        # in the order of CPU threads
        states = None if at_Q is None else hidden.index_select(0, at_Q)
        return hidden.index_select(0, micro.source_L), self.head, states

    def _shared(
        self, rows: PackedRows, micro: MicroBatch, shared: Shared, at_Q: torch.Tensor | None
    ) -> tuple[torch.Tensor, Any, torch.Tensor | None]:
        """A pass that a team computes together: each rank gets the states that its own targets are predicted from."""
        assert micro.positions is not None
        with packed_rows(rows), shared_pass(shared.team, decoder_of(self.model)):
            own = self.packed(rows, micro.ids_BS, micro.positions, micro.media)
        hidden = at(shared.team, own, shared.kept_K)
        states = None if at_Q is None else hidden.index_select(0, torch.searchsorted(shared.kept_K, at_Q))
        return hidden.index_select(0, torch.searchsorted(shared.kept_K, micro.source_L)), self.head, states

    def packed(
        self, rows: PackedRows, ids_BS: torch.Tensor, positions: torch.Tensor, media: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """The last hidden states [B, S, H] of packed rows. Masks are the model's own, see `packed_rows`; a mask of ones keeps it
        from guessing the layout by the positions."""
        return self.hidden(ids_BS, torch.ones_like(ids_BS), positions, media)

    def _separate(self, micro: MicroBatch, at_Q: torch.Tensor | None) -> tuple[torch.Tensor, Any, torch.Tensor | None]:
        """One prompt and completion a row; the model counts positions itself."""
        self.forget_positions()
        ids_BS, mask = micro.ids_BS, (micro.segment_BS >= 0).long()
        row_L, place_L = micro.source_L // ids_BS.shape[1], micro.source_L % ids_BS.shape[1]
        kept, index_L = place_L.unique(return_inverse=True)
        output = self.model(
            input_ids=ids_BS,
            attention_mask=mask,
            use_cache=False,
            logits_to_keep=kept,
            output_hidden_states=at_Q is not None,
            **self.with_media(micro.media),
        )
        states = None if at_Q is None else output.hidden_states[-1].flatten(0, 1).index_select(0, at_Q)
        told = output.logits.shape[1] == len(kept)  # some models don't know `logits_to_keep`
        return output.logits[row_L, index_L if told else place_L], torch.nn.Identity(), states

    def step(
        self,
        ids_NS: torch.Tensor,
        mask: torch.Tensor | None,
        positions: torch.Tensor | None,
        media: Mapping[str, torch.Tensor],
        cache: Any,
    ) -> torch.Tensor:
        """Feed tokens to a cache; returns the logits [N, V] that follow the last one. mask: None for rows without padding."""
        with self.padded(mask):
            if positions is not None:
                return self.head(self.hidden(ids_NS, mask, positions, media, cache)[:, -1])
            if not cache.get_seq_length():
                self.forget_positions()
            given = {cache_argument(self.model): cache, "use_cache": True, "logits_to_keep": 1, **self.with_media(media)}
            found: torch.Tensor = self.model(input_ids=ids_NS, attention_mask=mask, **given).logits[:, -1]
            return found

    def padded(self, mask: torch.Tensor | None) -> AbstractContextManager[None]:
        """For passes with this mask, which has padding in it, or without one."""
        return nullcontext() if mask is None else padded_rows(type(self.model.config.get_text_config()))

    def with_media(self, media: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Media as rollouts hold them <-> as the model takes them."""
        return {k: v.transpose(0, -1) if k in self.beside_each_other else v for k, v in media.items()}

    def arranged(self, encoded: dict[str, torch.Tensor], ids_S: torch.Tensor) -> dict[str, torch.Tensor]:
        """The processor's tensors for prompts whose positions are given, as the model can read them."""
        return encoded

    def forget_positions(self) -> None:
        """Clear the offset that models with M-RoPE store from the last prompt with images."""
        for module in (self.model, self.model.base_model, getattr(self.model, "model", None)):
            if module is not None and getattr(module, "rope_deltas", None) is not None:
                module.rope_deltas = None


def last_tokens(head: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A forward pre-hook of an output head, for models that don't know `logits_to_keep`: the last token of each row alone."""
    return (args[0][:, -1:], *args[1:]) if args and args[0].ndim == 3 else None


def decoder_of(model: Any) -> Any:
    """The language model that has the layers."""
    decoder = model.get_decoder()
    while not hasattr(decoder, "layers"):
        decoder = decoder.base_model if decoder.base_model is not decoder else decoder.model
    return decoder

"""A vision-language model as a policy: prompts -> model inputs, token logprobs with gradients, saving."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.checkpoint import checkpoint
from transformers import GenerationConfig

from mmrl.api.coordinates import ImageProcessing
from mmrl.api.errors import UserError
from mmrl.api.media.sounds import Waveform
from mmrl.api.types import Message, Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import ForwardOutputs, MicroBatch
from mmrl.policies.lora import add_adapters, is_adapter, load_adapters, save_adapters
from mmrl.policies.names import base_name
from mmrl.policies.policy import Policy
from mmrl.policies.shard import Sharded, model_state_dict, shard, unsharded
from mmrl.policies.vlm import attention, loading, tiny
from mmrl.policies.vlm.batch_invariant import make_invariant, refuse_variant
from mmrl.policies.vlm.capabilities import Capabilities
from mmrl.policies.vlm.coordinate_formats import format_of
from mmrl.policies.vlm.experts import has_experts, why_not_routed
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.known_families import family_of
from mmrl.policies.vlm.lanczos import use_pillows_lanczos
from mmrl.policies.vlm.limits import pixel_limits
from mmrl.policies.vlm.linear_logprobs import is_linear, linear_logprobs
from mmrl.policies.vlm.loading import load
from mmrl.policies.vlm.packed_rows import additive
from mmrl.policies.vlm.probe import probe
from mmrl.policies.vlm.processing import PromptProcessor, explained
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.published import layers_in_files, save_model
from mmrl.policies.vlm.row_lengths import longest_row
from mmrl.policies.vlm.vision_cache import use_vision_cache
from mmrl.policies.vlm.vocabulary import check_teacher

LOGIT_CHUNK = 2**25
"""Logits are computed for this many (token, vocabulary) pairs at a time: 128 MiB in float32."""


class VLM(Policy):
    """Any `AutoModelForImageTextToText`, the thinkers of Qwen-Omni among them, and Qwen2-Audio.

    The model stays in evaluation mode, also in updates: dropout would make the learner's log-probabilities differ from the
    sampler's.
    """

    collector = "mmrl.rollout.collector:turn_collector"
    packer = "mmrl.train.update.pack_conversations:ConversationPacker"

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None
    ) -> None:
        """source: load from this folder (a checkpoint of the run) instead of `config.model`; with `config.lora` it holds adapters
        of that model."""
        self.device = torch.device(device)
        self.lora = config.lora
        self.root: Sharded | None = None
        self.base = base_name(config.model, seed, tiny.full_name)
        model, self.processor = load(config, str(source) if source and not config.lora else config.model, seed)
        use_pillows_lanczos(self.processor)
        if config.lora:
            add_adapters(model, config.lora, seed, self.device)
            if source:
                load_adapters(model, source, layers_in_files(model))
        self.model = model.to(self.device).eval()
        self.tokenizer = self.processor.tokenizer
        self.unrouted = why_not_routed(self.model) if has_experts(self.model) else ""
        """Why nothing is known of the routes of a model with experts; empty if its routers are understood."""
        self.family: Family = family_of(self.model, self.processor)
        self.batch_invariant = config.batch_invariant
        if config.batch_invariant:
            make_invariant(self.model)
        use_vision_cache(self.family.base)
        self.banned = frozenset(self.family.banned_ids())
        self.eos = frozenset(_eos_ids(self.model, self.tokenizer)) - self.banned
        limits = pixel_limits(self.processor, config.min_pixels, config.max_pixels)
        frame = format_of(self.model.config.model_type, config.frame)
        words = config.chat_template_kwargs, config.shown_tokens
        self.reader = PromptProcessor(self.family, limits, self.eos, config.video, frame, *words)
        # other generation settings of a checkpoint are ignored; transformers may refuse to save them
        self.model.generation_config = GenerationConfig(eos_token_id=sorted(self.eos), pad_token_id=self.tokenizer.pad_token_id)
        self.end_id: int = self.tokenizer.eos_token_id
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        self.bias_V = torch.zeros(vocabulary, device=self.device)
        self.bias_V[[i for i in self.banned if i < vocabulary]] = -torch.inf  # Molmo 2's placeholders have no outputs
        self._try(config.model)
        self._probe(config.attn_implementation)

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for a `model` that can't be loaded, without loading it. A hub name is not looked up."""
        loading.check(config)

    @staticmethod
    def check_teacher(config: PolicyConfig, teacher: str) -> None:
        """Raise UserError if the teacher of a distill stage has other tokens; see `vocabulary.check_teacher`."""
        check_teacher(config, teacher)

    def _try(self, name: str) -> None:
        """Raise UserError if the processor or chat template can't process a picture, or a sound for a model that hears."""
        for sample in self.family.samples():
            what = "sound" if isinstance(sample, Waveform) else "picture"
            try:
                shown = self.encode(Prompt(messages=[user_message("x", sample)]))
            except UserError as error:
                why = explained(error.__cause__) if error.__cause__ else str(error)
                raise UserError(
                    f"{name!r}: a {what} can't be processed: {why}: check its chat template", key="policy.model"
                ) from error
            if not shown.media or self.banned.isdisjoint(shown.ids.tolist()):
                raise UserError(f"{name!r}: its chat template leaves {what}s out: use one that shows them", key="policy.model")

    def _probe(self, implementation: str) -> None:
        """Find out how the model may be run. Models of one configuration share the verdict."""
        kind = f"{type(self.family).__name__} {type(self.model).__name__} {self.model.dtype} {self.device.type} {implementation}"
        key = f"{kind} {self.batch_invariant} {self.model.config.to_json_string(use_diff=False)}"
        if key in _PROBED:
            self.family.use(_PROBED[key])
        else:
            ways = attention.ways(implementation, self.device, self.batch_invariant)
            _PROBED[key] = probe(self.family, self.reader.encode, ways)
        if self.batch_invariant:
            refuse_variant(self.model, self.family.capabilities)
        self.blank = self.encode(Prompt(messages=[user_message("x", *self.family.samples())]))

    # -- prompts and text, by the processor ------------------------------------------------------------------------------

    @property
    def image_processing(self) -> ImageProcessing:
        return self.reader.image_processing

    def encode(self, prompt: Prompt) -> PromptInputs:
        return self.reader.encode(prompt)

    def extend(
        self, inputs: PromptInputs, token_ids: Sequence[int], messages: Sequence[Message]
    ) -> tuple[PromptInputs, tuple[int, ...]]:
        return self.reader.extend(inputs, token_ids, messages)

    def begun(self, inputs: PromptInputs, token_ids: Sequence[int]) -> PromptInputs:
        return self.reader.begun(inputs, token_ids)

    def check_turns(self) -> None:
        """Raise UserError if a conversation can't go on after an answer."""
        self.reader.check_turns()

    @property
    def opening(self) -> str:
        return self.reader.opening

    def encode_completion(self, text: str) -> list[int]:
        return self.reader.encode_completion(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.reader.decode(ids)

    @property
    def width(self) -> int:
        """Width of the hidden states that a critic reads."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def longest(self) -> int:
        """The model's maximum number of positions; of Phi-4-multimodal, those of the frequencies that are computed."""
        return longest_row(self.model.config) or int(self.model.config.get_text_config().max_position_embeddings)

    def clone(self, frozen: bool = False, spread: bool = True) -> VLM:
        """A second policy with a copy of the weights as they are now; frozen: for the reference of a KL penalty. spread: if this
        policy's weights are sharded over ranks, shard the copy's too."""
        other = copy.copy(self)
        other.root = None
        with unsharded(self.root):
            other.model = copy.deepcopy(self.model) if self.root is None else self._rebuilt()
        if frozen:
            other.model.requires_grad_(False)
        other.family = type(self.family)(other.model, self.processor, self.family.capabilities)
        if self.batch_invariant and self.root is not None:
            make_invariant(other.model)
        if self.root is not None and spread:
            other.spread()
        return other

    def _rebuilt(self) -> Any:
        """A new model with the same weights, because sharded weights can't be copied."""
        from transformers import initialization

        settings = copy.deepcopy(self.model.config)
        dense = attention.dense_implementation(settings.get_text_config())  # families change what they compute another way
        with initialization.no_init_weights(), torch.random.fork_rng(devices=[]):
            model = type(self.model)._from_config(settings, attn_implementation=attention.asked(dense), dtype=self.model.dtype)
            if self.lora:
                add_adapters(model, self.lora, 0)
        model.load_state_dict(model_state_dict(self.model))
        model.tie_weights()
        for (_, own), (_, theirs) in zip(self.model.named_parameters(), model.named_parameters(), strict=True):
            theirs.requires_grad_(own.requires_grad)
        return model.to(self.device).eval()

    def spread(self) -> None:
        """Shard the weights over ranks."""
        self.root = shard(self.model)

    # -- the model ----------------------------------------------------------------------------------------------------

    def outputs(
        self, micro: MicroBatch, temperature: float, *, states: bool = False, entropy_gradient: bool = False
    ) -> ForwardOutputs:
        """One forward pass. states: also the hidden states that a critic reads. entropy_gradient: compute the entropy with
        gradient."""

        def passed() -> tuple[torch.Tensor, ...]:
            values_L, head, states_QH = self._forward(micro, states)
            scored = self._scored(values_L, head, micro.target_L, temperature, entropy_gradient)
            return scored if states_QH is None else (*scored, states_QH)

        logprobs_L, entropy_L, *seen = self._through(passed)
        return ForwardOutputs(logprobs_L=logprobs_L, entropy_L=entropy_L, states_QH=seen[0] if seen else None)

    def states(self, micro: MicroBatch) -> torch.Tensor:
        """The hidden states before each trained token and after each rollout, [L + R, H], without logits."""

        def passed() -> tuple[torch.Tensor]:
            states_QH = self._forward(micro, True)[2]
            assert states_QH is not None
            return (states_QH,)

        return self._through(passed)[0]

    def mean_logprobs(self, micro: MicroBatch, temperature: float) -> torch.Tensor:
        """float32 [L]: the mean over all tokens but banned ones of their log-probabilities in the state before each target."""

        def one(head: Any, values: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logprobs_LV = self.distribution(head(values), temperature)
            allowed_LV = logprobs_LV > -torch.inf
            mean_L = logprobs_LV.where(allowed_LV, 0.0).sum(-1) / allowed_LV.sum(-1)
            return mean_L, mean_L

        def passed() -> tuple[torch.Tensor, ...]:
            values_L, head, _ = self._forward(micro, False)
            return self._by_chunk(partial(one, head), values_L, values_L)

        return self._through(passed)[0]

    def slopes(self, micro: MicroBatch, temperature: float) -> torch.Tensor:
        """float32 [L]: the squared norm of the gradient of each target's log-probability with respect to the logits, behind the
        temperature."""

        def one(head: Any, values: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            shares = self.distribution(head(values), temperature).exp()
            slope = shares.scatter_add(-1, target[:, None], -torch.ones_like(shares[:, :1])).square().sum(-1)
            return slope, slope

        def passed() -> tuple[torch.Tensor, ...]:
            values_L, head, _ = self._forward(micro, False)
            return self._by_chunk(partial(one, head), values_L, micro.target_L)

        return self._through(passed)[0]

    def divergence(
        self, micro: MicroBatch, teacher: VLM, temperature: float, kind: Literal["reverse", "forward"]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(divergence_L with gradient, entropy_L without): KL(self || teacher) over the whole vocabulary at each target token
        (`reverse`), or KL(teacher || self) (`forward`), in nats; Agarwal et al., On-policy distillation, section 3."""
        with torch.no_grad():
            taught_L, teacher_head, _ = teacher._forward(micro, False)

        def one(head: Any, values: torch.Tensor, taught: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            width = min(len(self.bias_V), len(teacher.bias_V))  # rows beyond it have no token
            own = self.distribution(head(values), temperature)[:, :width].clamp_min(-1e4)
            with torch.no_grad():
                other = teacher.distribution(teacher_head(taught), temperature)[:, :width].clamp_min(-1e4)
                entropy = -(own.exp() * own).sum(-1)
            gap = own.exp() * (own - other) if kind == "reverse" else other.exp() * (other - own)
            return gap.sum(-1), entropy

        def passed() -> tuple[torch.Tensor, ...]:
            values_L, head, _ = self._forward(micro, False)
            return self._by_chunk(partial(one, head), values_L, taught_L)

        divergence_L, entropy_L = self._through(passed)
        return divergence_L, entropy_L

    def _forward(self, micro: MicroBatch, states: bool) -> tuple[torch.Tensor, Any, torch.Tensor | None]:
        """(values_L, head, states [L + R, H]): head(values_L) are the logits that predict each target token."""
        at_Q = torch.cat([micro.source_L, micro.final_R]) if states else None
        return self.family.values(micro, at_Q)

    def _scored(
        self, values_L: torch.Tensor, head: Any, target_L: torch.Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._at_once < len(values_L) and is_linear(head):
            options: dict[str, Any] = {"temperature": temperature, "entropy_gradient": entropy_gradient}
            return linear_logprobs(values_L, head, target_L, self.bias_V, at_once=self._at_once, **options)
        return self._by_chunk(lambda v, t: self._score(v, head, t, temperature, entropy_gradient), values_L, target_L)

    @property
    def _at_once(self) -> int:
        """Tokens whose logits are computed at a time."""
        return max(1, LOGIT_CHUNK // len(self.bias_V))

    def _by_chunk(
        self, function: Callable[..., tuple[torch.Tensor, torch.Tensor]], *values_L: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply `function` to a few tokens at a time; the backward pass recomputes their logits."""
        if len(values_L[0]) <= self._at_once:
            return function(*values_L)
        pieces = [
            checkpoint(function, *chunk, use_reentrant=False, preserve_rng_state=False)
            for chunk in zip(*(v.split(self._at_once) for v in values_L), strict=True)
        ]
        first, second = zip(*pieces, strict=True)
        return torch.cat(first), torch.cat(second)

    def _score(
        self, values_L: torch.Tensor, head: Any, target_L: torch.Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_LV = self.distribution(head(values_L), temperature)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_L = entropy_of(logprobs_LV)
        return logprobs_LV.gather(-1, target_L[:, None])[:, 0], entropy_L

    def distribution(self, logits_NV: torch.Tensor, temperature: float) -> torch.Tensor:
        """Float32 log-probabilities for sampling: temperature applied, banned ids at minus infinity."""
        bias_V = self.bias_V[: logits_NV.shape[-1]]  # Inkling's class leaves out rows of its output embeddings without a token
        return (logits_NV.float() / temperature + bias_V).log_softmax(-1)

    def parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """The trainable parameters by name, in a fixed order: all weights, or with `lora` the adapters'."""
        return ((name, p) for name, p in self.model.named_parameters() if not self.lora or is_adapter(name))

    def save(self, folder: Path) -> None:
        """A folder that `AutoModelForImageTextToText.from_pretrained` and vLLM load; with `lora`, peft and vLLM, its adapters.
        For thinkers see `save_model`."""
        if self.lora:
            save_adapters(self.model, folder, self.base, layers_in_files(self.model))
        else:
            save_model(self.model, folder, model_state_dict(self.model))
        self.processor.save_pretrained(folder)


_PROBED: dict[str, Capabilities] = {}
"""Configuration -> verdict of the probe, in this process."""


def entropy_of(logprobs_NV: torch.Tensor) -> torch.Tensor:
    """[N] in nats, of log-probabilities, some of which may be minus infinity."""
    return -(logprobs_NV.exp() * logprobs_NV.clamp_min(-1e4)).sum(-1)


def prefix_mask(segment_BS: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Additive mask [B, 1, S, S] in the model's dtype: 0 where a token sees another (the prompt and its own completion up to
    itself), else the smallest number. Padding sees itself, so that no row of the softmax is empty."""
    causal = torch.ones(segment_BS.shape[1], segment_BS.shape[1], dtype=torch.bool, device=segment_BS.device).tril()
    segment_B1S1, segment_B11S = segment_BS[:, None, :, None], segment_BS[:, None, None, :]
    return additive(causal & ((segment_B11S == 0) & (segment_B1S1 >= 0) | (segment_B1S1 == segment_B11S)), dtype)


def _eos_ids(model: Any, tokenizer: Any) -> set[int]:
    declared = model.generation_config.eos_token_id
    ids = set(declared if isinstance(declared, list) else [declared]) | {tokenizer.eos_token_id}
    return {i for i in ids if i is not None}

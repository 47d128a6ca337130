"""Pictures in models: the model's own processor is shown one, and a pass over it is run with weights that have shapes and no
numbers. What follows from the picture alone, such as grids and positions, has numbers.

b is the bytes of a weight.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves
from transformers.modeling_outputs import MoeModelOutputWithPast

from mmrl.api.errors import UserError
from mmrl.api.media.sounds import Waveform
from mmrl.api.types import Prompt, user_message
from mmrl.config.parts import part_of
from mmrl.config.sections import LoraConfig
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.layers import repeated_layers, replaced_forwards
from mmrl.policies.vlm.capabilities import Capabilities
from mmrl.policies.vlm.families import Family, decoder_of
from mmrl.policies.vlm.known_families import family_of
from mmrl.policies.vlm.limits import pixel_limits
from mmrl.policies.vlm.processing import PromptProcessor, explained
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.train.plan.alike import Kinds
from mmrl.train.plan.bounded import Bounded, refuse_counts
from mmrl.train.plan.cost import Cost
from mmrl.train.plan.counter import Pass
from mmrl.train.plan.kinds import adapted, kind_by_layer, without_layers
from mmrl.train.plan.known_masks import KnownMasks
from mmrl.train.plan.learning import ALL, Learning
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.once import once
from mmrl.train.plan.seen import SECONDS, Inputs, Kept, PerToken
from mmrl.train.plan.skeletons import linear_layers, skeleton
from mmrl.train.plan.traced import kept_of, trace

FULL = 4
TOWER = ("vision", "projector")
BESIDE = (*TOWER, "")
"""Parts beside the language model: also those for sounds."""
LENGTHS = (64, 128)
"""Tokens of the passes without pictures."""
ROWS = 2
"""Pictures of the passes that show what is kept: of one alone, torch doesn't copy what others share in a batch."""
CPU = torch.device("cpu")
SIDE = 4096
"""Side of the largest picture that a processor is shown; larger ones are taken for it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SeenPicture:
    """See `mmrl.train.plan.seen.Seen`."""

    pictures: Pictures
    encoded: PromptInputs
    tokens: int
    patches: int
    kept_token: int = 0

    @property
    def pixels(self) -> float:
        return FULL * sum(x.numel() for x in self.encoded.media.values() if x.is_floating_point()) / self.patches

    @once
    def forward(self, b: int) -> Pass:
        with self.pictures.running(b) as run:
            return trace(lambda: run(self.encoded), kinds=run.kinds)

    def attention(self, patches: int, picture: int, b: int) -> float:
        """Floating-point operations of attention. patches: of all pictures; picture: of one."""
        return self.forward(b).attention * patches / self.patches

    def cost(self, patches: int, picture: int, machine: Machine, b: int, rate: float) -> Cost:
        found, text = self.forward(b), self.per_token(b, ALL)
        words = len(self.encoded.ids)
        linear = Cost(
            products=(sum(flops for flops, _ in found.products) - words * text.flops) / (rate * machine.matmul),
            streaming=(found.moved - words * text.moved) / (machine.bandwidth * machine.streaming),
            flops=found.flops - found.attention - words * text.flops,
        )
        near = self.attention(patches, picture, b)
        beside = Cost(attention=near / (rate * machine.fused), starting=found.operations * machine.launch, flops=near)
        return linear.times(patches / self.patches) + beside

    @once
    def kept(self, b: int, learning: Learning) -> Kept:
        with self.pictures.running(b, learning) as run:
            layers = repeated_layers(run.family.model)
            whole, layer = kept_of(lambda: run(self._copied(), ROWS).sum(), layers, run.kinds)
        return Kept(whole=self._picture(whole, b, learning), layer=layer // ROWS)

    @once
    def inputs(self, b: int, learning: Learning) -> Inputs:
        with self.pictures.running(b, learning) as run, noted_inputs(run.family.model) as noted:

            def work() -> torch.Tensor:
                with gradient_checkpointing(run.family.model):  # of layers of which one is counted for all alike
                    return run(self._copied(), ROWS).sum()

            whole, _ = kept_of(work, kinds=run.kinds)
        sizes = sorted(size for *_, size in noted)
        return Inputs(whole=self._picture(whole, b, learning), moved=sum(sizes[:-2]) // ROWS)

    def _picture(self, kept: int, b: int, learning: Learning) -> int:
        """Of what rows keep, that of the picture in one of them."""
        return kept // ROWS - round(len(self.encoded.ids) * self.per_token(b, learning).kept)

    @once
    def per_token(self, b: int, learning: Learning) -> PerToken:
        """By two passes without pictures."""
        with self.pictures.running(b, learning) as run:
            passes = [trace(lambda n=n: run(self._text(n))) for n in LENGTHS]  # type: ignore[misc]
            kept = [kept_of(lambda n=n: run(self._text(n)).sum())[0] for n in LENGTHS]  # type: ignore[misc]
        flops, moved = ([getattr(each, name) for each in passes] for name in ("flops", "moved"))
        slopes = ((many - few) / (LENGTHS[1] - LENGTHS[0]) for few, many in (flops, moved, kept))
        return PerToken(*slopes)

    def _text(self, tokens: int) -> PromptInputs:
        """A prompt of so many tokens without pictures."""
        ids, own = torch.zeros(tokens, dtype=torch.int64), self.encoded
        types = {name: x.new_zeros(tokens) for name, x in own.token_types.items()}
        places = None if own.positions is None else torch.arange(tokens).expand(len(own.positions), -1)
        return PromptInputs(ids=ids, positions=places, media={}, token_types=types)

    def _copied(self) -> PromptInputs:
        """For so many rows, with pixels that are made in a pass, so that they are counted where it keeps them."""
        return replace(self.encoded, media={name: torch.cat([x] * ROWS) for name, x in self.encoded.media.items()})


class Pictures:
    """The pictures of a model. config: the content of its config.json. processor: as transformers loads it. what: the model's
    name in an error."""

    alike = False
    """Whether one stands for those of all sizes."""

    def __init__(self, config: str, processor: Any, what: str) -> None:
        self.config, self.processor, self.what = config, processor, what

    @once
    def seen(self, pixels: int) -> SeenPicture:
        """A square picture of so many pixels. Raises UserError if a pass over it needs numbers of weights."""
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # it logs what is raised, too
        side = max(1, min(SIDE, round(math.sqrt(pixels))))
        refuse_counts(self.processor, self.what)
        with self.running(FULL) as run, Bounded(self.what):
            encoded = run.read(Image.new("RGB", (side, side)) if run.family.sees else run.sound())
            with noted_inputs(run.family.model) as noted:
                run(encoded)
            tokens = run.tokens(encoded)
        first = [vectors for layer, vectors, _ in noted if layer is noted[0][0]]
        return SeenPicture(pictures=self, encoded=encoded, tokens=tokens, patches=sum(first) or tokens)

    def tokens(self, pixels: int) -> int:
        return self.seen(pixels).tokens

    def patches(self, pixels: int) -> int:
        return self.seen(pixels).patches

    @once
    def _family(self, b: int, learning: Learning) -> Family:
        model = without_layers(skeleton(self.config), (), b)
        if lora := learning.lora:
            given = LoraConfig.model_validate_json(lora)
            layers = linear_layers(self.config, tuple(given.target_modules), ())[0]
            mine = sorted(name for name in layers if part_of(name) in TOWER)
            model = adapted(model, json.dumps(json.loads(lora) | {"target_modules": mine})) if mine else model
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    module._parameters[name] = torch.nn.Parameter(FakeTensor(mode, weight.data, CPU), requires_grad=False)
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = FakeTensor(mode, buffer, CPU)
        for name, weight in model.named_parameters():
            weight.requires_grad_(learning.trains(name) and part_of(name) in BESIDE)
        family = family_of(model, self.processor)
        family.capabilities = Capabilities(packs=True)
        return family

    @once
    def _kinds(self, b: int, learning: Learning) -> Kinds:
        return kind_by_layer(self._family(b, learning).model)

    @contextmanager
    def running(self, b: int, learning: Learning = ALL) -> Iterator[Run]:
        """Passes over prompts, in which the language model's layers compute nothing. Raises UserError for whatever they raise."""
        try:
            family = self._family(b, learning)
            with _without_text(family), KnownMasks():
                yield Run(family, self._kinds(b, learning))
        except Exception as error:
            if isinstance(error, UserError) and str(error).startswith(self.what):
                raise
            cause = error.__cause__ if isinstance(error, UserError) and error.__cause__ else error  # without the prompt's name
            raise UserError(
                f"{self.what} can't be shown a picture without its weights, and mmrl plan can't count it: {explained(cause)}"
            ) from error


class Run:
    """Passes over prompts."""

    def __init__(self, family: Family, kinds: Kinds) -> None:
        """kinds: of the family's layers, of which one is counted for all alike."""
        self.family, self.kinds = family, kinds

    def sound(self) -> Waveform:
        """What a model hears that sees nothing."""
        rate = self.family.processor.feature_extractor.sampling_rate
        return Waveform(samples_T=np.zeros(SECONDS * rate, dtype=np.float32), rate=rate)

    def read(self, *pictures: Image.Image | Waveform) -> PromptInputs:
        reader = PromptProcessor(self.family, pixel_limits(self.family.processor, None, None), frozenset())
        return reader.encode(Prompt(messages=[user_message("", *pictures)]))

    def tokens(self, shown: PromptInputs) -> int:
        """Of a prompt's picture, besides one before and one behind it: what a prompt without it lacks, or the placeholders where
        a processor takes none."""
        placeholders = int(torch.isin(shown.ids, torch.tensor(self.family.banned_ids())).sum())
        try:
            return max(1, len(shown.ids) - len(self.read().ids) - 2)
        except UserError:
            return placeholders

    def __call__(self, encoded: PromptInputs, rows: int = 1) -> torch.Tensor:
        """rows: with the same ids; media are those of all."""
        ids = encoded.ids.expand(rows, -1)
        media = {**encoded.media, **{k: v.expand(rows, *v.shape) for k, v in encoded.token_types.items()}}
        places = torch.arange(ids.shape[1])[None] if encoded.positions is None else encoded.positions
        return self.family.hidden(ids, torch.ones_like(ids), places[:, None].expand(-1, rows, -1), media)


def _without_text(family: Family) -> AbstractContextManager[None]:
    """Inside, the language model's layers compute nothing."""
    decoder = decoder_of(family.model)
    if decoder is not family.base:
        return replaced_forwards([decoder], lambda _: _nothing)
    return replaced_forwards([*decoder.layers, decoder.norm], lambda _: lambda hidden, *_, **__: hidden)  # it sees by itself


def _nothing(*args: Any, **kwargs: Any) -> MoeModelOutputWithPast:
    """What a language model gives whose layers compute nothing, but that gradients flow to all that it is given, such as pictures
    that layers further up are given."""
    hidden, *others = [kwargs.pop("inputs_embeds"), *tree_leaves((args, kwargs))]
    for each in others:
        if isinstance(each, torch.Tensor) and each.requires_grad:
            hidden = hidden + each.sum()
    return MoeModelOutputWithPast(last_hidden_state=hidden)


@contextmanager
def noted_inputs(model: Any) -> Iterator[list[tuple[Any, int, int]]]:
    """Yields what goes into each of the model's layers inside, in turn: (the layer, number of vectors, their bytes)."""
    found: list[tuple[Any, int, int]] = []

    def note(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next(x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
        found.append((layer, math.prod(given.shape[:-1]), given.numel() * given.element_size()))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in repeated_layers(model)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()

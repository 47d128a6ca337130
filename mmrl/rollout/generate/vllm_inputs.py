"""How prompts are handed to vLLM: the learner's ids, and its tensors divided into the items that vLLM's class of the model reads.

Nothing is processed twice, and no family is named. vLLM's own processor of the class is asked once, for a few made-up pictures
and sounds: its items must hold the learner's tensors. What it adds to them, and where it cuts padding off, says how the learner's
are divided. Where pictures are cut into tiles that don't see each other, each tile is an item of its own, and so is each frame of
a video that is shown as a picture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.api.media.sounds import Waveform
from mmrl.api.types import Prompt, user_message
from mmrl.policies.vlm.known_families import Qwen3VL
from mmrl.policies.vlm.processing import SECONDS, PromptProcessor
from mmrl.policies.vlm.prompt_inputs import FRAMES, PromptInputs
from mmrl.policies.vlm.vlm import VLM

NOUNS = {"image": "picture", "video": "video", "audio": "sound"}
"""Kind of media, as vLLM calls it -> as it is called here."""
PIXELS = "pixel_values"
ASKED = (((64, 96),), ((200, 70),), ((60, 140), (96, 64)))
"""(width, height) of the pictures for which vLLM's processor is asked, prompt by prompt."""
ASKED_SOUNDS = ((0.5,), (0.3, 1.4))
"""Seconds of the sounds, of which each is a whole number of frames: vLLM fills others up."""

Media = Mapping[str, Any]


class Asked(NamedTuple):
    """A made-up prompt, and what vLLM's processor made of its media."""

    kind: str
    ours: PromptInputs
    theirs: Sequence[Media]
    places: set[int]
    """Indices of the ids that stand for media."""


def refusal(policy: VLM, why: str) -> str:
    """A model that vLLM can't serve, in one line."""
    return f'compute.sampler = "vllm" can\'t serve a {policy.model.config.model_type} model: {why}: use "local"'


class VllmInputs:
    """`PromptInputs` -> prompts as vLLM's own processor would give them to its engine."""

    def __init__(self, policy: VLM, processor: Any) -> None:
        """processor: vLLM's `BaseMultiModalProcessor` of the model. Raises UserError if it reads pictures otherwise than the
        learner."""
        self.policy, self.processor = policy, processor
        self.arrange: Callable[[Media], dict[str, Any]] = as_given
        self.added: dict[str, torch.Tensor | str | None] = {}
        """What vLLM's items hold beside the learner's tensors: the same in all, one of the learner's by another name, or None for
        the number of their tiles or patches."""
        self.numbers: set[int] = set()
        """How many ids stood for a tile or picture when vLLM's processor was asked."""
        self.limits: Mapping[str, int | None] = processor.info.supported_mm_limits
        self._learn()

    def __call__(self, inputs: PromptInputs) -> Any:
        """Raises UserError for media that can't be handed over."""
        from vllm.inputs.engine import mm_input, tokens_input
        from vllm.multimodal.inputs import PlaceholderRange

        ids = inputs.ids.tolist()
        if not inputs.media:
            return tokens_input(ids)
        if inputs.positions is not None and bool((inputs.positions % 1).any()):
            why = "its class in vLLM rounds positions of frames down, and here some lie between whole ones"
            raise UserError(refusal(self.policy, why))
        items = self.items(inputs)
        places = {
            kind: [
                PlaceholderRange(first, len(mask), None if mask.all() else mask)
                for first, mask in self.places(inputs.ids, kind, items.get(kind, ()))
            ]
            for kind in NOUNS
        }
        places = {kind: found for kind, found in places.items() if found}
        return mm_input(ids, items, {kind: [digest(item) for item in items[kind]] for kind in places}, places)

    def items(self, inputs: PromptInputs) -> Any:
        """vLLM's `MultiModalKwargsItems`: the learner's tensors in the model's dtype, divided by vLLM's own rules."""
        from transformers import BatchFeature
        from vllm.multimodal.inputs import MultiModalKwargsItems

        media = self.arrange({**inputs.media, **inputs.clocks})
        dtype = self.policy.model.dtype
        media = {name: value if name == SECONDS else _cast(value, dtype) for name, value in media.items()}  # times are exact
        if PIXELS in media:
            counts = media["image_grid_thw"].prod(-1) if "image_grid_thw" in media else torch.ones(len(media[PIXELS])).long()
            for name, value in self.added.items():
                media[name] = counts if value is None else media[value] if isinstance(value, str) else value
        feature = BatchFeature(media)
        return MultiModalKwargsItems.from_hf_inputs(feature, self.processor._get_mm_fields_config(feature, {}))

    def places(self, ids_S: torch.Tensor, kind: str, items: Sequence[Media]) -> Iterator[tuple[int, torch.Tensor]]:
        """For each item: (where it begins, which of the ids from there to its last stand for it)."""
        own_S = ids_S == self._token(kind)
        total, limit, noun = int(own_S.sum()), self.limits.get(kind), NOUNS[kind]
        if total and (not items or (kind == "video" and "video_grid_thw" not in items[0])):
            # vLLM 0.32 fails on videos of several lengths in one batch where they have no grids (LLaVA-OneVision)
            raise UserError(refusal(self.policy, f"its class in vLLM can't be given a {noun}"))
        if limit is not None and len(items) > limit:
            raise UserError(refusal(self.policy, f"its class in vLLM reads {limit} {noun} a prompt, and here are {len(items)}"))
        framed = kind == "video" and isinstance(self.policy.family, Qwen3VL)  # vLLM looks for where each frame begins and ends
        for at in own_S.nonzero()[:, 0].split(self._numbers(kind, items, own_S) if items else []):
            first, last = int(at[0]), int(at[-1])
            if framed:
                first, last = first - 1, last + 1
            yield first, own_S[first : last + 1]

    def _token(self, kind: str) -> int:
        """The id that stands for a part of a picture, video or sound; -1 if the model has none."""
        config = self.policy.model.config
        found = getattr(config, f"{kind}_token_id", None)
        return getattr(config, f"{kind}_token_index", -1) if found is None else int(found)

    def _numbers(self, kind: str, items: Sequence[Media], own_S: torch.Tensor) -> list[int]:
        """How many ids stand for each item."""
        total, first = int(own_S.sum()), items[0]
        if f"{kind}_grid_thw" in first:
            shares = [int(item[f"{kind}_grid_thw"].data.prod()) for item in items]
        elif self.arrange is cut_to_size:
            shares = [item[PIXELS].data[0].numel() for item in items]
        else:
            starts = own_S & ~own_S.roll(1)
            starts[0] = own_S[0]
            if int(starts.sum()) == len(items):
                return torch.bincount(starts.cumsum(0)[own_S] - 1).tolist()
            pixels = {tuple(value.data.shape) for item in items for name, value in item.items() if name.startswith(PIXELS)}
            known = not self.numbers or total // len(items) in self.numbers
            shares = [1] * len(items) if known and len(pixels) == 1 else [0]
        if not sum(shares) or any(total * share % sum(shares) for share in shares):
            raise UserError(refusal(self.policy, f"the {NOUNS[kind]}s of a prompt can't be told apart"))
        return [total * share // sum(shares) for share in shares]

    # -- what vLLM's processor does ------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Find the arrangement in which vLLM's classes read the learner's tensors."""
        asked, others = [], []
        for kind, media in self._made_up():
            ours, theirs, places = self._ask(kind, media)
            if len(places) < len(media) and len(media) > 1:
                others.append(ours)  # it has other ids for several pictures than transformers, which is of no matter here
            else:
                asked.append(Asked(kind, ours, theirs, {i for place in places for i in _embedded(place)}))
        why = f"its processor in vLLM knows no {'pictures' if self.policy.family.sees else 'sounds'}"
        for arrange in (as_given, tiles_of_all, cut_to_size, self.finished):
            self.arrange = arrange
            self.added = self._added([(one.ours, one.theirs) for one in asked if one.kind == "image"])
            why = next(filter(None, map(self._differs, asked)), "") if asked else why
            if not why:
                break
        if why:
            raise UserError(refusal(self.policy, why))
        for ours in (*others, *(one.ours for one in asked if one.kind == "image")):
            self.numbers |= {int(mask.sum()) for _, mask in self.places(ours.ids, "image", self.items(ours)["image"])}

    def _made_up(self) -> Iterator[tuple[str, list[Any]]]:
        """(kind, media of a prompt), for each prompt for which vLLM's processor is asked."""
        from PIL import Image

        family, noise = self.policy.family, torch.Generator().manual_seed(0)
        for sizes in ASKED if family.sees else ():
            if len(sizes) > (self.limits.get("image") or len(sizes)):
                continue
            drawn = [torch.randint(0, 256, (h, w, 3), generator=noise, dtype=torch.uint8) for w, h in sizes]
            yield "image", [Image.fromarray(pixels.numpy()) for pixels in drawn]
        for lengths in ASKED_SOUNDS if family.hears and "audio" in self.limits else ():
            rate = self.policy.reader.sound_limits.rate
            samples = [torch.rand(round(rate * length), generator=noise) - 0.5 for length in lengths]
            yield "audio", [Waveform(samples_T=one.numpy(), rate=rate) for one in samples]

    def _ask(self, kind: str, media: Sequence[Any]) -> tuple[PromptInputs, Sequence[Media], Sequence[Any]]:
        """(the prompt that the learner makes of these media, the items that vLLM makes of them, where it finds them in that
        prompt)."""
        from vllm.multimodal.processing import ProcessorInputs, TimingContext

        policy = self.policy
        reader = PromptProcessor(policy.family, {}, policy.eos, policy.reader.video, policy.reader.frame)
        ours = reader.encode(Prompt(messages=[user_message("x", *media)]))
        ids = ours.ids.tolist()
        given = [one.samples_T if isinstance(one, Waveform) else one for one in media]
        try:
            shown = self.processor.info.parse_mm_data({kind: given}, validate=False)
            made = self.processor._apply_hf_processor(ProcessorInputs(ids, shown), TimingContext(enabled=False))
            places = self.processor._find_mm_placeholders(ids, made.prompt_updates).get(kind, ())
            return ours, made.kwargs[kind], places
        except Exception as error:
            raise UserError(refusal(policy, f"its processor in vLLM can't read a {NOUNS[kind]} ({_reason(error)})")) from error

    def finished(self, media: Media) -> dict[str, Any]:
        """As vLLM's processor goes on from what transformers' gives it: under other names, sounds without their padding."""
        from transformers import BatchFeature

        return dict(self.processor._postprocess_hf_mm_data({}, {}, BatchFeature(dict(media))))

    def _added(self, asked: Sequence[tuple[PromptInputs, Sequence[Media]]]) -> dict[str, torch.Tensor | str | None]:
        """What vLLM's items hold beside the learner's tensors, as far as it can be told."""
        found: dict[str, torch.Tensor | str | None] = {}
        arranged = [(self.arrange(ours.media), theirs) for ours, theirs in asked]
        pairs = [(item, media) for media, theirs in arranged for item in theirs]
        for name in {name for item, media in pairs for name in item if name not in media}:
            values = [(_tensor(item[name].data), _count(item, media)) for item, media in pairs if name in item]
            if all(value.numel() == 1 and int(value) == count for value, count in values):
                found[name] = None
            elif all(torch.equal(value, values[0][0]) for value, _ in values):
                found[name] = values[0][0]
            for own in set(arranged[0][0]) - {PIXELS}:
                if all(_same(list(media[own]), [_tensor(item[name].data) for item in theirs]) for media, theirs in arranged):
                    found[name] = own
        return found

    def _differs(self, asked: Asked) -> str:
        """In what vLLM's items and the learner's differ; empty if they don't."""
        kind, ours, theirs, known_places = asked
        try:
            items = self.items(ours).get(kind, ())
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            return f"its class in vLLM doesn't read what transformers' processor gives ({_reason(error)})"
        for name in sorted({name for item in (*items, *theirs) for name in item}):
            values = [[_tensor(item[name].data) for item in some if name in item] for some in (items, theirs)]
            known = self.added.get(name, name)
            if known is None:
                values = [[torch.stack(of).sum()] for of in values]
            if name == FRAMES:  # how many are told to be padding is of no matter
                values = [[one.sum() for one in of] for of in values]
            if not isinstance(known, torch.Tensor) and not _same(*values):
                return f"its processor in vLLM gives another {name} than transformers'"
        found = {first + int(at) for first, mask in self.places(ours.ids, kind, items) for at in mask.nonzero()[:, 0]}
        return "" if found == known_places else f"its processor in vLLM puts {NOUNS[kind]}s in other places than transformers'"


# -- arrangements of the learner's tensors ---------------------------------------------------------------------------------------


def as_given(media: Media) -> dict[str, Any]:
    """As they are; where pictures were filled up with empty tiles to the same number, without those."""
    found = dict(media)
    if PIXELS in media and media[PIXELS].ndim == 5:
        last = [int(_filled(tiles).nonzero().max()) + 1 for tiles in media[PIXELS]]
        found[PIXELS] = [tiles[:end] for tiles, end in zip(media[PIXELS], last, strict=True)]
    return found


def tiles_of_all(media: Media) -> dict[str, Any]:
    """Tiles of all pictures of a prompt behind each other, without empty ones."""
    if PIXELS not in media or media[PIXELS].ndim != 5:
        return dict(media)
    filled = torch.stack([_filled(tiles) for tiles in media[PIXELS]])
    return {name: value[filled] if value.shape[:2] == filled.shape else value for name, value in media.items()}


def cut_to_size(media: Media) -> dict[str, Any]:
    """Each picture without the padding that gave all of a prompt one height and width."""
    if PIXELS not in media or "image_sizes" not in media or media[PIXELS].ndim != 4:
        return dict(media)
    sizes = media["image_sizes"].tolist()
    return {**media, PIXELS: [one[:, :height, :width] for one, (height, width) in zip(media[PIXELS], sizes, strict=True)]}


def _filled(tiles: torch.Tensor) -> torch.Tensor:
    """Which tiles [n, ...] hold more than padding."""
    return tiles.flatten(1).any(1)


# -- tensors ---------------------------------------------------------------------------------------------------------------------


def digest(item: Media) -> str:
    """Hash of the tensors of a picture, video or sound: vLLM encodes equal ones once."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(item):
        value = _tensor(item[name].data)
        found.update(f"{name}{tuple(value.shape)}".encode())
        found.update(value.reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list):
        return [_cast(one, dtype) for one in value]
    return value.to(dtype) if value.is_floating_point() else value


def _tensor(value: Any) -> torch.Tensor:
    """A value of an item, which may be a list."""
    return torch.stack(list(map(_tensor, value))) if isinstance(value, list) and value else torch.as_tensor(value)


def _count(item: Media, media: Media) -> int:
    """Tiles or patches of an item of vLLM's."""
    pixels = _tensor(item[PIXELS].data)
    return len(pixels) if pixels.ndim == media[PIXELS][0].ndim + 1 else 1


def _same(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    """Whether they hold the same numbers, however divided along the first axis."""
    if not ours or not theirs:
        return False
    shapes = [{one.shape[1:] for one in some} for some in (ours, theirs)]
    numbers = [torch.cat([one.flatten().double() for one in some]) for some in (ours, theirs)]
    return shapes[0] == shapes[1] and torch.equal(*numbers)


def _reason(error: Exception) -> str:
    """An error of vLLM's processor, or of transformers' inside it."""
    return shorten(error.__cause__ or error, 150)


def _embedded(place: Any) -> list[int]:
    """The ids, by their index, that stand for patches of a picture that vLLM found."""
    inside = range(place.length) if place.is_embed is None else place.is_embed.nonzero()[:, 0].tolist()
    return [place.start_idx + at for at in inside]

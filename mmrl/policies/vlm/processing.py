"""Processing for vision-language models: prompts and conversations -> ids, positions, pixels; and ids -> text."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.errors import UserError, plugin_errors, shorten
from mmrl.api.media.clips import VideoLimits
from mmrl.api.media.decoding import cached_frames
from mmrl.api.media.hearing import heard
from mmrl.api.media.images import load_image
from mmrl.api.media.sounds import Waveform
from mmrl.api.types import Message, Prompt, user_message
from mmrl.config.sections import VideoConfig
from mmrl.policies.vlm.answer_texts import AnswerTexts
from mmrl.policies.vlm.chat_templates import QUESTION, ChatTemplate, without_opening
from mmrl.policies.vlm.coordinate_formats import UnknownFormat
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.limits import SoundLimits, part_defaults, sound_limits, video_factor
from mmrl.policies.vlm.prompt_inputs import FRAMES, SECONDS_PER_GRID, PromptInputs, can_join
from mmrl.policies.vlm.prompt_media import PromptMedia
from mmrl.policies.vlm.row_lengths import longest_row
from mmrl.policies.vlm.vision_cache import numbered

TOOLS_AS_TEXT = 'let the task write their schemas into its messages (bundled ones: schemas = "text"), or choose another model'
SECONDS = "second_per_grid_ts"
"""An output of processors that is used for positions alone."""


class PromptProcessor:
    """The processor of a model family, with its limits on pictures."""

    def __init__(
        self,
        family: Family,
        limits: Mapping[str, Any],
        eos: frozenset[int],
        video: VideoConfig = VideoConfig(),
        frame: CoordinateFormat | None = None,
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        shown_tokens: Sequence[str] = (),
    ) -> None:
        """limits: keyword arguments of the image processor, see `limits.pixel_limits`; eos: the ids that end a turn; video:
        limits of videos; frame: the format in which the model writes coordinates, None if nobody knows; template_kwargs,
        shown_tokens: `policy.chat_template_kwargs` and `shown_tokens`. Raises UserError for those that the model doesn't have."""
        self.template, self.frame = ChatTemplate(family.processor, template_kwargs), frame
        self.family, self.limits, self.eos, self.video = family, limits, eos, video
        self.processor = family.processor
        self.tokenizer = self.processor.tokenizer
        self.reserved = tuple(t for t in self.tokenizer.convert_ids_to_tokens(sorted(family.banned_ids())) if t)
        """Placeholder tokens of pictures, as text."""
        self.texts = AnswerTexts(self.tokenizer, shown_tokens, self.reserved, eos)

    @property
    def image_processing(self) -> ImageProcessing:
        """How this policy processes images, for tasks."""
        known = ImageProcessing(self.frame or CoordinateFormat.PIXELS, functools.lru_cache(maxsize=4096)(self._seen_size))
        return known if self.frame else UnknownFormat(known, self.family.model.config.model_type)

    def _seen_size(self, size: tuple[int, int]) -> tuple[int, int]:
        from PIL import Image

        found = self.encode(Prompt(messages=[user_message("", Image.new("RGB", size))])).model_sizes
        return found[0] if found else size

    def encode(self, prompt: Prompt) -> PromptInputs:
        """Process one prompt's text and images. Raises UserError when an image or the template can't be used."""
        where = f"prompt {prompt.id!r} of task {prompt.task!r}"
        messages, shown = self._loaded(where, prompt.messages)
        self._check_text(where, messages)
        if prompt.tools and not self.shows_tools:
            raise UserError(f"{where}: the model's chat template shows no tools: {TOOLS_AS_TEXT}")
        encoded = self._encode_prompt(where, messages, shown, prompt.tools)
        ids = encoded.pop("input_ids")[0]
        if (longest := longest_row(self.family.model.config)) and len(ids) > longest:
            raise UserError(
                f"{where} has {len(ids)} tokens, and this model has other rotary frequencies beyond {longest}: show smaller "
                "pictures, or set its short_factor to its long_factor in config.json"
            )
        return self._inputs(ids, encoded, shown)

    def _inputs(
        self, ids: torch.Tensor, encoded: dict[str, torch.Tensor], shown: PromptMedia, placed: bool = True
    ) -> PromptInputs:
        """What the processor made of a text, whose positions begin at 0. ids: int64 [S]. encoded: its other tensors. shown: the
        media in it. placed: whether positions are given to the model."""
        positions = self.family.positions(ids, encoded) if placed else None
        encoded = encoded if positions is None else self.family.arranged(encoded, ids)
        per_token = _per_token(encoded, len(ids))
        # a model with M-RoPE needs these for its positions alone
        unread = {"mm_token_type_ids"} if positions is not None and self.family.has_axes else set()
        media = {k: v for k, v in encoded.items() if k not in per_token and k != SECONDS}
        return PromptInputs(
            ids=ids,
            positions=positions,
            media=media,
            pictures=numbered(media),
            token_types={k: encoded[k][0] for k in sorted(per_token - unread)},
            clocks={SECONDS: torch.as_tensor(encoded[SECONDS])} if SECONDS in encoded else {},
            image_sizes=tuple(i.size for i in shown.images),
            model_sizes=self.family.model_sizes(encoded),
            coordinate_format=self.frame or CoordinateFormat.PIXELS,
        )

    def pictures(self, shown: Sequence[Sequence[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The media of prompts with these pictures alone, as `encode` gives them, one prompt behind the other; without their
        text. shown: each prompt's pictures, uint8 [3, H, W] on any device; all prompts have as many, of the same sizes."""
        asked = {**part_defaults(self.processor, "images_kwargs"), **self.limits, "return_tensors": "pt"}
        found = self._tensors(self.processor.image_processor(images=shown, **asked))
        found = self.family.arranged(found, torch.empty(0, dtype=torch.long))
        return {k: v for k, v in found.items() if k in self._of_pictures}

    @functools.cached_property
    def _of_pictures(self) -> frozenset[str]:
        """The names of a picture's media. An image processor gives more, which a processor reads to write its text."""
        from PIL import Image

        return frozenset(self.encode(Prompt(messages=[user_message("", Image.new("RGB", (64, 64)))])).media)

    def check_turns(self) -> None:
        """Raise UserError if a conversation can't go on after an answer."""
        if not self.family.goes_on:
            kind = self.family.model.config.model_type
            raise UserError(
                f"a {kind} model gives one answer to a prompt and can't go on with an environment's reply: choose another model"
            )

    def extend(
        self, inputs: PromptInputs, token_ids: Sequence[int], messages: Sequence[Message]
    ) -> tuple[PromptInputs, tuple[int, ...]]:
        """(inputs after a turn and the reply to it, ids of the reply): what the policy reads before its next turn. The sampled
        ids don't change; the ids of the reply include the chat template's text around the messages.

        inputs: the conversation before the turn. Raises UserError when a picture or the template can't be used.
        """
        where = "an environment's reply"
        self.check_turns()
        following, media = self._loaded(where, messages)
        if media.images and not self.family.sees_replies:
            kind = self.family.model.config.model_type
            raise UserError(f"{where}: a {kind} model sees pictures of the prompt alone: reply in words, or choose another model")
        self._check_text(where, following)
        encoded = self._encode_text(where, self._after_an_answer(following), media)
        ids = encoded.pop("input_ids")[0]
        if len(ids) and len(token_ids) and int(ids[0]) in self.eos and token_ids[-1] in self.eos:
            along = {k for k, v in encoded.items() if k != FRAMES and v.ndim == 2 and v.shape[:2] == (1, len(ids))}
            ids, encoded = ids[1:], {k: v[:, 1:] if k in along else v for k, v in encoded.items()}
        reply = self._inputs(ids, encoded, media, placed=inputs.positions is not None)
        if not can_join([inputs.media, reply.media]):
            kind = self.family.model.config.model_type
            raise UserError(
                f"{where}: its pictures are processed into another number or size of tiles than the earlier ones, and a {kind} "
                "model can't take both in one conversation: show pictures of one size, or choose another model"
            )
        return self._answered(inputs, token_ids).followed(reply, self.family.completion_type), tuple(ids.tolist())

    def begun(self, inputs: PromptInputs, token_ids: Sequence[int]) -> PromptInputs:
        """Inputs after the first tokens of an answer, which goes on behind them. Raises UserError for a model that reads a prompt
        otherwise than an answer."""
        if not self.family.has_turns:
            kind = self.family.model.config.model_type
            raise UserError(
                f"a {kind} model can't go on with a begun answer, as it reads prompts otherwise: choose another model"
            )
        return self._answered(inputs, token_ids)

    def _answered(self, inputs: PromptInputs, token_ids: Sequence[int]) -> PromptInputs:
        """Inputs after tokens of an answer."""
        return inputs.answered(torch.tensor(token_ids, dtype=torch.long), self.family.completion_type)

    def _after_an_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of the chat template after an assistant's answer: its end, these messages, and the next turn's head. It is the
        common ending of two conversations that differ only in the answer."""
        try:
            texts = [
                self.template.text([QUESTION, {"role": "assistant", "content": [{"type": "text", "text": answer}]}, *messages])
                for answer in "01"
            ]
        except Exception as error:
            raise _unfit("an environment's reply", error) from error
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*map(reversed, texts), strict=False))
        return "".join(a for a, _ in alike)[::-1]

    @functools.cached_property
    def shows_tools(self) -> bool:
        """Whether the chat template shows the schemas of tools."""
        schema = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
        try:
            return self.template.text([QUESTION]) != self.template.text([QUESTION], tools=[schema])
        except Exception as error:
            raise _unfit("tools", error) from error

    @property
    def opening(self) -> str:
        """See `ChatTemplate.opening`."""
        return self.template.opening

    def _encode_prompt(
        self, where: str, messages: Sequence[Mapping[str, Any]], media: PromptMedia, tools: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, torch.Tensor]:
        """The processor's tensors of a conversation, with the head of the next answer."""
        shown: dict[str, Any] = {"tools": list(tools)} if tools else {}
        options: dict[str, Any] = {"text_kwargs": self._text_options}
        options |= {"images_kwargs": dict(self.limits)} if self.limits and media.images else {}
        try:
            if media.videos or media.sounds:  # their times and rates are passed separately, which the template can't do
                text = self.template.text(messages, **shown)
                bos = self.tokenizer.bos_token  # added as transformers adds it before a prompt with pictures
                return self._encode_text(where, text, media, begins=bos is None or not text.startswith(bos))
            encoded = self.template.encoded(messages, options, **shown)
        except UserError:
            raise
        except Exception as err:
            raise _unfit(where, err) from err
        return self._tensors(encoded)

    def _encode_text(self, where: str, text: str, media: PromptMedia, begins: bool = False) -> dict[str, torch.Tensor]:
        """The processor's tensors of a text after the chat template, with these media in it. begins: the tokenizer may add the
        tokens of a text's beginning."""
        text_options = {"add_special_tokens": begins, **self._text_options}
        options = {"text_kwargs": text_options, **media.arguments(self.processor, self.limits)}
        try:
            encoded = self.processor(text=[text], return_tensors="pt", **options)
        except Exception as err:
            raise _unfit(where, err) from err
        if SECONDS_PER_GRID in encoded:  # Qwen-Omni's take one rate for all videos
            encoded[SECONDS_PER_GRID] = media.seconds_per_grid(self.processor.video_processor.temporal_patch_size)
        return self._tensors(encoded)

    @functools.cached_property
    def _text_options(self) -> dict[str, bool]:
        """Nothing is cut off or filled up, as a tokenizer does whose settings were saved by a training that did. Types of tokens
        are asked for if a model counts its positions by them and its processor gives none unasked, as Cosmos 3 Edge's."""
        whole = {"truncation": False, "padding": False}
        unasked = getattr(self.processor, "return_mm_token_type_ids", False)  # known from transformers 5.24 on
        return whole | ({"return_mm_token_type_ids": True} if self.family.counts_by_types and not unasked else {})

    def _tensors(self, encoded: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The outputs of the processor that the model takes."""
        left_out = ("attention_mask", "labels", "video_metadata")  # PaliGemma's makes labels
        kept = {k: v for k, v in encoded.items() if k not in left_out}
        dtype = self.family.model.dtype  # Llama 4's gives pictures in bfloat16 to any model, and not all models convert them
        return self.family.with_media({k: v.to(dtype) if "pixel_values" in k else v for k, v in kept.items()})

    def _loaded(self, where: str, messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], PromptMedia]:
        """(messages with all content in parts, their media), decoded."""
        found = PromptMedia()

        def part(p: Mapping[str, Any]) -> dict[str, Any]:
            if p["type"] in ("image", "video") and not self.family.sees:
                kind = self.family.model.config.model_type
                raise UserError(f"a {kind} model hears sounds and sees nothing: choose another model for pictures")
            if p["type"] == "image":
                found.images.append(load_image(p["image"]))
                return {"type": "image", "image": found.images[-1]}
            if p["type"] == "video":
                found.videos.append(cached_frames(p["video"], self.video_limits))
                return {"type": "video", "video": found.videos[-1].frames_THWC}
            if p["type"] == "audio":
                found.sounds.append(self._heard(p["audio"]))
                return {"type": "audio", "audio": found.sounds[-1].samples_T}
            if p["type"] != "text":
                raise UserError(
                    f"a message part of type {p['type']!r} can't be shown to a model: use text, image, video and audio"
                )
            return dict(p)

        def parts(content: Any) -> list[dict[str, Any]]:
            return [{"type": "text", "text": content}] if isinstance(content, str) else [part(p) for p in content]

        with plugin_errors(f"{where}: reading its messages (make them with mmrl.user_message)"):
            return [{**m, "content": parts(m["content"])} for m in messages], found

    def _heard(self, sound: Any) -> Waveform:
        """A sound as the model hears it. Raises UserError for one that is too short for a feature."""
        limits = self.sound_limits
        wave = heard(sound, limits.rate, limits.most_s)
        if wave.duration_s < limits.least_s:
            what = f"sound {wave.name}" if wave.name else "a sound"
            raise UserError(f"{what} has {wave.duration_s:.2g} s: a model needs {limits.least_s:g} s: leave it out")
        return wave

    @functools.cached_property
    def sound_limits(self) -> SoundLimits:
        """Rate and length of a sound as the model hears it."""
        if not self.family.hears:
            kind = self.family.model.config.model_type
            raise UserError(f"a {kind} model can't hear sounds here: choose one that does, such as Qwen/Qwen2.5-Omni-3B")
        return sound_limits(self.processor)

    @functools.cached_property
    def video_limits(self) -> VideoLimits:
        """Limits on the frames of a video."""
        video = self.video
        if why := self.family.no_videos:
            raise UserError(f"a {self.family.model.config.model_type} model can't be shown videos: {why}: choose another model")
        return VideoLimits(
            fps=video.fps,
            max_frames=video.max_frames,
            factor=video_factor(self.processor) or 1,
            max_pixels=video.max_pixels,
            total_pixels=video.total_pixels,
        )

    def _check_text(self, where: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Raise UserError for text that the processor would take for a picture or a sound."""
        what = "picture's or sound" if self.family.sees and self.family.hears else "picture" if self.family.sees else "sound"
        texts = [part["text"] for message in messages for part in message["content"] if part["type"] == "text"]
        if found := next((token for token in self.reserved for text in texts if token in text), None):
            raise UserError(f"{where}: the text (with hint and condition) contains {found!r}, a {what}'s placeholder: remove it")

    def encode_completion(self, text: str) -> list[int]:
        """The ids of a given completion, the token that ends it included. What the chat template has written of it is left
        out."""
        return [*self.texts.encode(without_opening(text, self.opening)), self.end_id]

    @functools.cached_property
    def end_id(self) -> int:
        """The token behind an answer in the chat template, if it is one of those that end a turn, such as Gemma's
        <end_of_turn>, which isn't its tokenizer's end of a sequence; that one otherwise."""
        usual = int(self.tokenizer.eos_token_id)
        if not self.family.has_turns:
            return usual
        try:
            behind = self.tokenizer.encode(self._after_an_answer([]), add_special_tokens=False)
        except UserError:  # the template shows no answers, so that it has no token behind one
            return usual
        return behind[0] if behind and behind[0] in self.eos else usual

    def decode(self, ids: Sequence[int]) -> str:
        return self.texts.decode(ids)


def _per_token(encoded: Mapping[str, torch.Tensor], length: int) -> set[str]:
    return {k for k, v in encoded.items() if k not in (SECONDS, FRAMES) and v.ndim == 2 and tuple(v.shape) == (1, length)}


def explained(error: BaseException) -> str:
    """An error of a processor, in one line."""
    return f"{type(error).__name__}: {shorten(error, 300)}"


def _unfit(where: str, error: Exception) -> UserError:
    return UserError(f"{where} can't be processed: {explained(error)}")

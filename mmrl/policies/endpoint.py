"""A model behind an OpenAI-compatible endpoint as a policy that is evaluated and can't be trained: a baseline on any task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.endpoints.client import ChatEndpoint
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.endpoints.options import EndpointSettings, Seconds
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoLimits
from mmrl.api.types import Message, Prompt
from mmrl.config.sections import PolicyConfig
from mmrl.policies.policy import Policy
from mmrl.policies.vlm.coordinate_formats import UnknownFormat
from mmrl.policies.vlm.processing import TOOLS_AS_TEXT

_TEXT = ("chat_template", "chat_template_kwargs", "shown_tokens")
UNUSED = ("dtype", "attn_implementation", "batch_invariant", "trust_remote_code", *_TEXT, "min_pixels", "lora")
"""Keys of `[policy]` that mean nothing for an endpoint."""


NOT_TRAINED = "a model behind an endpoint can't be trained"


class OpaqueTokens(tuple[int, ...]):
    """The tokens of an answer, whose ids only the endpoint knows: as many -1 as it has tokens, and their text."""

    text: str
    said: str
    """The text without its thinking, which later turns of a conversation don't read."""

    def __new__(cls, text: str, count: int, said: str | None = None) -> OpaqueTokens:
        made = super().__new__(cls, (-1,) * (max(count, 1) if text else count))  # a text has a token, also if nobody counted
        made.text, made.said = text, text if said is None else said
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return OpaqueTokens, (self.text, len(self), self.said)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInputs:
    """A conversation as the endpoint gets it."""

    messages: tuple[Mapping[str, Any], ...]
    """In OpenAI's form, see `mmrl.api.endpoints.messages`."""
    coordinate_format: CoordinateFormat
    image_sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each original image, in pixels."""
    model_sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each image as it is sent, in pixels. What the endpoint makes of it isn't known."""
    ids: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """Empty: the tokens are the endpoint's."""


@dataclass(kw_only=True)
class PolicyEndpoint(EndpointSettings):
    """Options of an `EndpointPolicy`."""

    timeout_s: Seconds = 120.0
    """Seconds that one request may take."""


class EndpointPolicy(Policy):
    """`policy.model` is the name of a model that the endpoint serves; options are those of
    `PolicyEndpoint`."""

    collector = "mmrl.rollout.endpoint:endpoint_collector"
    packer = ""
    options_class = PolicyEndpoint
    longest = 2**31
    """The endpoint refuses conversations that are too long for it."""
    banned: frozenset[int] = frozenset()
    """Only the endpoint knows which tokens stand for images."""

    def __init__(
        self,
        config: PolicyConfig,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
        source: Path | None = None,
        **options: Any,
    ) -> None:
        own = PolicyEndpoint(**options)
        self.device, self.name, self.model = (
            torch.device("cpu"),
            config.model,
            torch.nn.Module(),
        )  # the weights are the endpoint's
        self.endpoint = ChatEndpoint(model=config.model, timeout_s=own.timeout_s, **own.settings())
        self.frame = CoordinateFormat(config.frame) if config.frame else None
        video = config.video
        sizes = {"max_pixels": video.max_pixels, "total_pixels": video.total_pixels}
        self.encoder = ChatEncoder(
            max_pixels=config.max_pixels, video=VideoLimits(fps=video.fps, max_frames=video.max_frames, **sizes)
        )

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for keys that mean nothing here."""
        for name in sorted(config.model_fields_set.intersection(UNUSED)):
            raise UserError("means nothing for a model behind an endpoint: leave it out", key=f"policy.{name}")

    # -- prompts and text -------------------------------------------------------------------------------------------------

    @property
    def image_processing(self) -> ImageProcessing:
        known = ImageProcessing(self.frame or CoordinateFormat.PIXELS, self.encoder.size)
        return known if self.frame else UnknownFormat(known, f"{self.name!r}")

    def encode(self, prompt: Prompt) -> ChatInputs:
        """Raises UserError for media that can't be decoded, and for tools: an endpoint answers in a form of its own to them."""
        if prompt.tools:
            raise UserError(f"task {prompt.task!r}: an endpoint is told of tools in messages alone: {TOOLS_AS_TEXT}")
        return self._extended(ChatInputs(messages=(), coordinate_format=self.frame or CoordinateFormat.PIXELS), prompt.messages)

    def extend(
        self, inputs: ChatInputs, token_ids: Sequence[int], messages: Sequence[Message]
    ) -> tuple[ChatInputs, tuple[int, ...]]:
        """(the conversation after a turn and the reply to it, no ids). Raises UserError for media that can't be decoded."""
        said = token_ids.said if isinstance(token_ids, OpaqueTokens) else ""
        answered = replace(inputs, messages=(*inputs.messages, {"role": "assistant", "content": said}))
        return self._extended(answered, messages), ()

    def _extended(self, inputs: ChatInputs, messages: Sequence[Message]) -> ChatInputs:
        encoded, sizes = self.encoder(messages)
        return replace(
            inputs,
            messages=(*inputs.messages, *encoded),
            image_sizes=(*inputs.image_sizes, *sizes),
            model_sizes=(*inputs.model_sizes, *map(self.encoder.size, sizes)),
        )

    def begun(self, inputs: ChatInputs, token_ids: Sequence[int]) -> ChatInputs:
        """Raises UserError: an endpoint begins each answer itself."""
        raise UserError("a model behind an endpoint can't go on with a begun answer: choose one that runs here")

    def check_turns(self) -> None:
        """A conversation may go on after an answer."""

    def encode_completion(self, text: str) -> list[int]:
        """Raises UserError: nothing is trained on completions."""
        raise UserError(NOT_TRAINED)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, with its thinking where the endpoint tells it."""
        return ids.text if isinstance(ids, OpaqueTokens) else ""

    # -- training -----------------------------------------------------------------------------------------------------------

    def outputs(self, micro: Any, temperature: float, **_: Any) -> Any:
        """Raises UserError: the weights are the endpoint's."""
        raise UserError(NOT_TRAINED)

    def save(self, folder: Path) -> None:
        """Raises UserError: the weights are the endpoint's."""
        raise UserError(NOT_TRAINED)

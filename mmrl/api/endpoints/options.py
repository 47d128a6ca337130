"""Options of an endpoint, declared once for all that ask one: verifiers, tasks, rules and policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from mmrl.api.annotations import check_types
from mmrl.api.endpoints import JUDGE_KEYS
from mmrl.api.errors import UserError
from mmrl.api.specs import Bounds

TINY = "tiny"
"""The `model` of a smoke run: no endpoint is asked, and the verifier has a stand-in."""

Count = Annotated[int, Bounds(low=1)]
"""A number of questions, tokens or pixels."""
Seconds = Annotated[float, Bounds(above=0, high=86_400)]
Temperature = Annotated[float, Bounds(low=0)]


@dataclass(kw_only=True)
class EndpointSettings:
    """How an endpoint is asked. Raises UserError for a value of another type or outside its range."""

    base_url: str = "https://api.openai.com/v1"
    """Address of the endpoint, up to `/v1`."""
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable with the key. An address with http:// needs none."""
    concurrency: Count = 16
    """Largest number of questions that are asked at once."""
    retries: Annotated[int, Bounds(low=0)] = 4
    """How often a question is asked again after an error that may pass: a time-out, 408, 409, 429 or 5xx."""
    max_calls: Count | None = None
    """Number of questions after which no more are asked. Unset: no limit. Cached answers don't count."""
    max_total_tokens: Count | None = None
    """Number of tokens, of questions and answers, after which no more are asked. It can be passed by the questions under way.
    Unset: no limit."""
    cache: str | None = None
    """Folder in which answers are kept, by the content of their question. Unset: none are kept."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a request's body, such as `{reasoning_effort = "low"}`."""
    omit: Sequence[str] = ()
    """Fields that this endpoint refuses, such as `temperature`."""

    def __post_init__(self) -> None:
        check_types("", type(self), vars(self))

    def settings(self) -> dict[str, Any]:
        """Those that `ChatEndpoint` takes by the same names."""
        return {one.name: getattr(self, one.name) for one in fields(EndpointSettings)}


@dataclass(kw_only=True)
class EndpointOptions(EndpointSettings):
    """Options of what asks a model behind an endpoint; a subclass has further ones, or other defaults."""

    model: str
    """Name of a model that the endpoint serves."""
    request_timeout_s: Seconds = 60.0
    """Seconds that one request may take."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_variable not in JUDGE_KEYS:
            raise UserError(
                f"key_variable = {self.key_variable!r:.60}: a verifier gets {' and '.join(JUDGE_KEYS)} alone: use one of them"
            )


@dataclass(kw_only=True)
class AnswerOptions(EndpointOptions):
    """And of how long and how random its answers are."""

    max_tokens: Count = 1024
    """Most tokens of an answer, its thoughts included."""
    temperature: Temperature = 0.0
    """Temperature at which an answer is sampled."""

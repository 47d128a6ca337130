"""The interface of all samplers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mmrl.api.seeds import derive
from mmrl.rollout.generate.processor import LogitsProcessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion."""

    token_ids: tuple[int, ...]
    """The end token included, if it was sampled."""
    logprobs: tuple[float, ...]
    finished: bool
    """An end token was sampled; otherwise the limit cut the completion off."""
    lost: str = ""
    """Why the sampler has no completion, such as an endpoint that doesn't answer. The episode is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Effective sampling parameters; the checkpoint's generation_config is ignored."""

    max_tokens: int
    temperature: float
    """Of the distribution that is sampled; 0 takes the most likely token (its logprob is that at temperature 1)."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability are sampled; their logprobs stay those among all tokens."""
    top_k: int = 0
    """Only this many of the likeliest tokens are sampled; 0 for all."""
    seed: int = 0
    """Each completion has its own random generator, seeded with this and the prompt's number; see `prompt_seed`."""
    logits_processor: LogitsProcessor | None = None
    """Changes the logits before tokens are chosen; only the embedded sampler supports it."""


def prompt_seed(sampling: SamplingParams, number: int) -> int:
    """The seed of a prompt's completions."""
    return derive(sampling.seed, "prompt", number)


class Generator(Protocol):
    """Prompts -> completions of the policy with its present weights."""

    batch_size: int
    """Completions decoded at once."""

    def wake_up(self) -> None:
        """Prepare to sample with the learner's present weights, even if they change later. Called on all ranks, and only while
        nothing is sampled."""
        ...

    def ready(self) -> None:
        """Make what sampling needs, so that errors appear before a run begins."""
        ...

    def generate(
        self, inputs: Sequence[Any], group_size: int, sampling: SamplingParams, numbers: Sequence[int] = ()
    ) -> list[list[Completion]]:
        """group_size completions of each prompt. numbers: of the prompts; with the seed they fix each prompt's random draws,
        whatever the rest of the batch is. By default 0, 1 and so on."""
        ...

    def sleep(self) -> None:
        """An update follows: free memory until the next `generate`."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...

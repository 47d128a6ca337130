"""What every sampler is asked and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mmrl.api.seeds import derive
from mmrl.policies.vlm.processing import PromptInputs
from mmrl.rollout.generate.processor import LogitsProcessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion."""

    token_ids: tuple[int, ...]
    """The end token included, if it came."""
    logprobs: tuple[float, ...]
    finished: bool
    """An end token was sampled; otherwise the limit cut the completion off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Effective sampling parameters; the checkpoint's generation_config is ignored."""

    max_tokens: int
    temperature: float
    """Of the distribution that is sampled; 0 takes the most likely token (its logprob is that at temperature 1)."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability are sampled; their logprobs stay those among all tokens."""
    top_k: int = 0
    """Only so many of the likeliest tokens are sampled; 0 for all."""
    seed: int = 0
    """Each completion draws from a generator of its own, made from this and `prompt_seed`'s numbers."""
    logits_processor: LogitsProcessor | None = None
    """Changes the logits before tokens are chosen; of the embedded sampler alone."""


def prompt_seed(sampling: SamplingParams, number: int) -> int:
    """What a prompt's completions are drawn with."""
    return derive(sampling.seed, "prompt", number)


class Generator(Protocol):
    """Prompts -> completions of the policy as it is at the moment."""

    batch_size: int
    """Completions decoded at once."""

    def wake_up(self) -> None:
        """Completions are asked for next, of the learner's weights as they are now and not as they become meanwhile. Called on
        all ranks alike, and only while nothing is sampled."""
        ...

    def ready(self) -> None:
        """Make what sampling needs, so that what can't be made is refused before a run begins."""
        ...

    def generate(
        self, inputs: Sequence[PromptInputs], group_size: int, sampling: SamplingParams, numbers: Sequence[int] = ()
    ) -> list[list[Completion]]:
        """group_size completions of each prompt. numbers: of the prompts, which with the seed fix what is drawn for each, whoever
        its neighbours are; by default they are counted."""
        ...

    def sleep(self) -> None:
        """The learner learns now: give back what memory can be given until the next `generate`."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...

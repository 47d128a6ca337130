"""The interface of all samplers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mmrl.api.seeds import derive
from mmrl.policies.vlm.routes import Routes
from mmrl.rollout.generate.exchange import Stretch
from mmrl.rollout.generate.processor import LogitsProcessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion."""

    token_ids: tuple[int, ...]
    """The end token included, if it was sampled."""
    logprobs: tuple[float, ...]
    finished: bool
    """An end token was sampled, or the end of a stop text; otherwise the limit cut the completion off."""
    lost: str = ""
    """Why the sampler has no completion, such as an endpoint that doesn't answer. The episode is lost."""
    versions: tuple[Stretch, ...] = ()
    """The versions of the weights that sampled it, if they may change in between (`compute.interrupt`)."""
    routes: Routes | None = None
    """The experts that its prompt and its tokens went through, if `SamplingParams.routes` asked for them."""


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
    stop: tuple[str, ...] = ()
    """A completion ends with the token that completes one of these texts."""
    logits_processor: LogitsProcessor | None = None
    """Changes the logits before tokens are chosen; only the embedded sampler supports it."""
    routes: bool = False
    """Tell which experts were chosen; vLLM can only if it was started so, see `VllmGenerator`."""
    earlier: tuple[int, ...] = ()
    """Of each prompt, how often any learner was dealt it before with this seed: episodes in simulators, which its id seeds, are
    then further ones. Empty if none comes twice."""


class StopTexts:
    """Finds where completions reach one of some texts."""

    def __init__(self, texts: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self.texts, self.decode = tuple(texts), decode
        self.longest = max((len(text.encode()) for text in self.texts), default=0)
        """Maximum of tokens in one of the texts: a token has at least one byte."""

    def end(self, ids: Sequence[int], seen: int) -> int | None:
        """The number of tokens with which one of the texts is first complete; None if it isn't. seen: number of tokens in which
        it isn't."""
        first = max(0, seen - self.longest)
        if not self._within(ids[first:]):
            return None
        return next(n for n in range(seen + 1, len(ids) + 1) if self._within(ids[first:n]))

    def _within(self, ids: Sequence[int]) -> bool:
        text = self.decode(ids)
        return any(stop in text for stop in self.texts)


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


@runtime_checkable
class Interruptible(Protocol):
    """A generator whose completions can be interrupted (`compute.interrupt`)."""

    def renew(self, version: int) -> None:
        """Sample with the learner's present weights, of this version, from the next token on. Called on all ranks, also while
        another thread samples: the completions under way stop, and go on from their tokens with a cache that is computed anew."""
        ...

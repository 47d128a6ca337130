"""The keys of `[generate]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mmrl.api.sampling import COLDEST, HOTTEST, MOST_TOKENS
from mmrl.config.values import Count, Positive, Real, Section


class GenerateConfig(Section):
    """`[generate]`: sampling of completions during training. The checkpoint's own generation settings are ignored."""

    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] = 256
    """Longest completion, in tokens."""
    temperature: Annotated[float, Field(ge=COLDEST, le=HOTTEST)] = 1.0
    """Logits are divided by this, in the sampler and in the learner."""
    top_p: Annotated[Real, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest tokens with this total probability; log-probabilities are still those over all tokens."""
    top_k: Count = 0
    """Sample from this many of the likeliest tokens; 0: from all."""
    stop: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(default=(), max_length=16)
    """Texts such as `</tool_call>`: a completion ends with the token that completes one of them, also in evaluations."""
    max_turns: Positive = 8
    """Episodes in an environment are truncated after this many turns; a task without environments has a single turn."""
    max_context: Positive | None = None
    """Longest conversation with an environment in tokens, including the next answer; a longer episode is truncated. By default
    the model's own limit."""
    batch_size: Positive = 256
    """Number of completions sampled at once, and of environments used at once; a group is never split, even if it is larger."""
    cuda_graphs: bool = False
    """On a GPU, start all kernels of a token at once with `compute.sampler = "local"`, or of a policy that acts those of a call's
    flow or action tokens: faster where starting them takes longer than running them. A sampler needs room for keys and values of
    half as many tokens again, a policy that acts for a second copy of what its pictures and text leave."""

    def smaller(self) -> GenerateConfig:
        return self.at_most(max_tokens=16, max_turns=4)

"""Language worlds: conversations. A single answer to a picture is an episode of one turn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmrl.generate.local import LocalGenerator, Sample, Sampling
from mmrl.policies.vlm import VLM, PromptInputs
from mmrl.types import Prompt, Rollout, Status, Turn


class TurnCollector:
    """Encodes each prompt once, samples its group, and keeps what was sampled."""

    def __init__(self, policy: VLM, generator: LocalGenerator) -> None:
        self.policy = policy
        self.generator = generator

    def encode(self, prompts: Sequence[Prompt]) -> list[PromptInputs]:
        """Prompts as the model reads them."""
        return [self.policy.encode(p) for p in prompts]

    def collect(
        self, prompts: Sequence[Prompt], inputs: Sequence[PromptInputs], group_size: int, sampling: Sampling, version: int = 0
    ) -> list[Rollout]:
        """N = len(prompts) * group_size finished episodes, a group's next to each other."""
        groups = self.generator.generate(inputs, group_size, sampling)
        return [
            self._rollout(prompt, encoded, sample, group, version)
            for group, (prompt, encoded, samples) in enumerate(zip(prompts, inputs, groups, strict=True))
            for sample in samples
        ]

    def demonstrate(self, prompts: Sequence[Prompt], inputs: Sequence[PromptInputs], completions: Sequence[str]) -> list[Rollout]:
        """Rollouts that hold a given completion each; nobody sampled them, so their logprobs are NaN."""
        samples = [self.policy.encode_completion(text) for text in completions]
        return [
            self._rollout(p, i, Sample(token_ids=tuple(ids), logprobs=(math.nan,) * len(ids), finished=True), n, 0)
            for n, (p, i, ids) in enumerate(zip(prompts, inputs, samples, strict=True))
        ]

    def _rollout(self, prompt: Prompt, inputs: PromptInputs, sample: Sample, group: int, version: int) -> Rollout:
        turn = Turn(
            observed_ids=tuple(inputs.ids.tolist()),
            token_ids=sample.token_ids,
            logprobs=sample.logprobs,
            text=self.policy.decode(sample.token_ids),
            terminated=sample.finished,
            truncated=not sample.finished,
            version=version,
        )
        status = Status.FINISHED if sample.finished else Status.TRUNCATED_LENGTH
        return Rollout(prompt=prompt, group=group, turns=(turn,), status=status, inputs=inputs)

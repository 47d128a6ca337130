"""Answers of a model behind an endpoint, sampled as the completions of a policy are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.api.endpoints.client import Question
from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.seeds import derive
from mmrl.config.sections import RunConfig
from mmrl.policies.endpoint import ChatInputs, EndpointPolicy, OpaqueTokens
from mmrl.rollout.generate.sampling import Completion, SamplingParams, prompt_seed
from mmrl.rollout.turns import ConversationCollector

PER_SLOT = 8
"""Questions of one call for each that is asked at once, so that slow ones don't hold up the others."""


def endpoint_collector(config: RunConfig, tasks: Mapping[str, Task], policy: EndpointPolicy) -> ConversationCollector:
    """The collector of its conversations."""
    return ConversationCollector(policy, EndpointGenerator(policy), tasks, config.generate.max_turns, config.generate.max_context)


class EndpointGenerator:
    """Asks the endpoint. A completion that it doesn't give is lost: the episode counts as failed and not as wrong."""

    def __init__(self, policy: EndpointPolicy) -> None:
        self.policy = policy
        self.batch_size = PER_SLOT * policy.endpoint.concurrency
        self._answered = False

    def ready(self) -> None:
        """Nothing to prepare."""

    def wake_up(self) -> None:
        """Nothing to prepare."""

    def sleep(self) -> None:
        """Nothing to free."""

    def close(self) -> None:
        """Nothing to release."""

    def generate(
        self, inputs: Sequence[ChatInputs], group_size: int, sampling: SamplingParams, numbers: Sequence[int] = ()
    ) -> list[list[Completion]]:
        """group_size answers to each prompt. Raises UserError if the endpoint has not answered a single question so far, and for
        settings that it doesn't have."""
        if sampling.logits_processor is not None or sampling.top_k or sampling.stop:
            raise UserError(
                "an endpoint has neither top_k nor logits processors, and leaves stop texts out of its answers: leave out top_k, "
                "stop and evaluate.steer"
            )
        numbers = numbers or range(len(inputs))
        asked = [
            self._question(one, sampling, derive(prompt_seed(sampling, number), "answer", k))
            for one, number in zip(inputs, numbers, strict=True)
            for k in range(group_size)
        ]
        # a policy that has thought and not answered is wrong, as one that runs here is
        answers = [getattr(answer, "thought", None) or answer for answer in self.policy.endpoint.ask(asked)]
        self._answered |= any(isinstance(answer, Answer) for answer in answers)
        if answers and not self._answered:
            raise UserError(f"the endpoint gave no answer: {answers[0]}")
        made = [_completion(answer) for answer in answers]
        return [made[i : i + group_size] for i in range(0, len(made), group_size)]

    def _question(self, inputs: ChatInputs, sampling: SamplingParams, seed: int) -> Question:
        return Question(
            messages=inputs.messages,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=seed % 2**31 if sampling.temperature else None,
        )


def _completion(answer: Answer | NoAnswer) -> Completion:
    if isinstance(answer, NoAnswer):
        return Completion(token_ids=(), logprobs=(), finished=False, lost=str(answer))
    tokens = OpaqueTokens(answer.whole, answer.num_tokens, answer.text)
    return Completion(token_ids=tokens, logprobs=(math.nan,) * len(tokens), finished=answer.finished)

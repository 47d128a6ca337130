"""The angle concentration of prompts: how alike the directions of their tokens' hidden states are (Wang et al., GAIN-RL)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mmrl.api.errors import UserError
from mmrl.api.types import Message, Prompt
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.tower import pass_prompt
from mmrl.policies.vlm.vlm import VLM


def question_concentration(states_SH: torch.Tensor, question: slice) -> float:
    """The angle concentration of a prompt's question (arXiv 2506.02281, section 3): the mean cosine over the pairs of its tokens,
    plus that over the pairs of one of them and one before the question. A mean without pairs is 0.

    states_SH: hidden states of the prompt's tokens. question: the tokens of the question.

    The published code means the same, but takes rows in place of columns (`data_processor.py`).
    """
    unit_SH = _unit(states_SH)
    asked, before = unit_SH[question], unit_SH[: question.start]
    across = float((asked.sum(0) @ before.sum(0)) / (len(asked) * len(before))) if len(asked) and len(before) else 0.0
    return _mean_of_pairs(asked) + across


def concentration(states_SH: torch.Tensor) -> float:
    """The mean cosine over all pairs of tokens, 0 without pairs; it moves the centre during training. The published verl version
    scales along the tokens in place of the hidden states (`dp_actor.py`), which is a slip."""
    return _mean_of_pairs(_unit(states_SH))


def _unit(states_SH: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(states_SH.float(), dim=-1)


def _mean_of_pairs(unit_SH: torch.Tensor) -> float:
    """Mean cosine of all pairs of different vectors of length 1, without a matrix of all pairs."""
    count = len(unit_SH)
    if count < 2:
        return 0.0
    return float((unit_SH.sum(0).square().sum() - unit_SH.square().sum()) / (count * (count - 1)))


def question_angles(policy: VLM, prompt: Prompt) -> float:
    """`question_concentration` of a prompt; the question is the text of the last user message. Raises UserError for a prompt that
    can't be shown."""
    inputs = policy.encode(prompt)
    without = policy.encode(replace(prompt, messages=_without_question(prompt.messages)))
    return question_concentration(_states(policy, inputs), _difference(inputs.ids.tolist(), without.ids.tolist()))


def prompt_angles(policy: VLM, prompt: Prompt) -> float:
    """`concentration` of a prompt. Raises UserError for a prompt that can't be shown."""
    return concentration(_states(policy, policy.encode(prompt)))


@torch.no_grad()
def _states(policy: VLM, inputs: PromptInputs) -> torch.Tensor:
    """[S, H]: what the last layer's feed-forward network reads, as in the published code."""
    seen: list[torch.Tensor] = []
    hook = last_feed_forward(policy).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        pass_prompt(policy, inputs)
    finally:
        hook.remove()
    return seen[-1][0]


def last_feed_forward(policy: VLM) -> Any:
    """The feed-forward network of the last layer. Raises UserError for a model that has none there."""
    try:
        return policy.model.get_decoder().layers[-1].mlp
    except AttributeError:
        raise UserError(
            f"stages.curriculum: a {type(policy.model).__name__} has no last layer with a feed-forward network of its own, whose "
            "hidden states have the angles: use another model, or drop curriculum"
        ) from None


def _without_question(messages: Sequence[Message]) -> list[Message]:
    """The messages without the text of the last user message."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    found = list(messages)
    if last >= 0:
        content = messages[last]["content"]
        blank = "" if isinstance(content, str) else [{**p, "text": ""} if p["type"] == "text" else p for p in content]
        found[last] = {**messages[last], "content": blank}
    return found


def _difference(ids: Sequence[int], without: Sequence[int]) -> slice:
    """The tokens that are between what both begin with and what both end with."""
    shorter = min(len(ids), len(without))
    start = next((i for i in range(shorter) if ids[i] != without[i]), shorter)
    most = shorter - start
    end = next((i for i in range(most) if ids[-1 - i] != without[-1 - i]), most)
    return slice(start, len(ids) - end)

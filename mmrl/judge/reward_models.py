"""Reward models with a scalar head, for verifiers. They are frozen and deterministic."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Sequence
from pathlib import Path

from mmrl.api.errors import UserError
from mmrl.api.types import Message, Prompt
from mmrl.config.sections import PolicyConfig
from mmrl.judge.models import TINY, dtype_of, prepared_device, resolve_device
from mmrl.policies.reward_model import HEAD, RewardModel


class Ratings:
    """A reward model that rates completions; see `reward_model`."""

    def __init__(self, policy: RewardModel) -> None:
        self.policy = policy

    def rate(self, answered: Sequence[tuple[Sequence[Message], str]]) -> list[float]:
        """The rating of each (conversation that ends with the user, completion); any number. Conversations that follow each other
        and are the same, as those of a group are, are encoded and computed once."""
        found: list[float] = []
        for _, same in itertools.groupby(answered, lambda one: _content(one[0])):
            group = list(same)
            found += self.policy.rate(self.policy.encode(Prompt(messages=list(group[0][0]))), [said for _, said in group])
        return found


def _content(messages: Sequence[Message]) -> object:
    """Equal for conversations that are the same."""
    try:
        return pickle.dumps(messages)
    except (pickle.PicklingError, TypeError, AttributeError, OSError, ValueError):
        return object()  # a task's media may hold anything, such as a lock: no other conversation is known to be the same


def reward_model(model: str, *, device: str = "auto", max_pixels: int | None = None) -> Ratings:
    """Load a reward model. model: the `policy` folder of a checkpoint, or `tiny`. Raises UserError with the key `model`."""
    check_reward_model(model, device=device)
    device = prepared_device(device)
    try:
        return Ratings(_policy("tiny:qwen2_5_vl" if model == TINY else model, device, max_pixels))
    except UserError as error:
        raise UserError(error.what, key="model" if error.key else "") from error


@functools.lru_cache(maxsize=4)
def _policy(model: str, device: str, max_pixels: int | None) -> RewardModel:
    """Verifiers with the same model share it."""
    policy = RewardModel(PolicyConfig(model=model, dtype=dtype_of("auto", device), max_pixels=max_pixels), device=device, seed=0)
    policy.model.requires_grad_(False)
    return policy


def check_reward_model(model: str, *, device: str = "auto") -> None:
    """Raise UserError for a folder without a reward model's head, without loading it."""
    resolve_device(device)
    if model == TINY:
        return
    if not (Path(model) / HEAD).is_file():
        what = f"has no {HEAD}" if Path(model).is_dir() else "is no folder"
        raise UserError(
            f'{model!r} {what}: give the policy folder of a checkpoint of policy.kind = "reward", such as '
            "runs/NAME/checkpoints/step-000100/policy",
            key="model",
        )
    RewardModel.check(PolicyConfig(model=model))

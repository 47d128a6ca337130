"""Checks of `preference` stages, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.config.sections import PreferenceStage, RunConfig
from mmrl.config.training import ComparedTraining


def check_rating(config: RunConfig, tasks: Mapping[str, Task], rates: bool) -> None:
    """Refuse stages that a reward model can't have, and the stage of a reward model for a policy that writes. tasks: by label.
    rates: the policy is a reward model."""
    for number, stage in enumerate(config.stages):
        trains = isinstance(stage, PreferenceStage) and stage.rates
        if trains and not rates:
            raise UserError(
                f'stages.{number}.loss = "bradley-terry" trains a reward model, and policy.kind = {config.policy.kind!r} is '
                'none: set policy.kind = "reward", or another loss'
            )
        if rates and not trains:
            raise UserError(
                f'stages.{number}: policy.kind = "reward" rates completions and writes none, so it can only be trained by '
                'kind = "preference" with loss = "bradley-terry"'
            )
    for label in tasks if rates and config.evaluate.num_prompts else ():
        if type(tasks[label]).pair is Task.pair:
            raise UserError(f"a reward model is evaluated on pairs, and task {label!r} has none: set evaluate.num_prompts = 0")


def check_reference(config: RunConfig, where: str, stage: ComparedTraining) -> None:
    """Refuse a reference model that can't be, or can't follow the policy. where: the stage's place, for messages."""
    if stage.reference == "adapter" and config.policy.lora is None:
        raise UserError(f'{where}.reference = "adapter" needs adapters: give [policy.lora], or set reference = "frozen"')
    if stage.reference_every and config.policy.lora is not None and stage.reference == "auto":
        raise UserError(
            f'{where}.reference_every: with adapters the reference is the model without them: set reference = "frozen"'
        )


def check_preference(config: RunConfig, number: int, stage: PreferenceStage, tasks: Mapping[str, Task]) -> None:
    """Refuse a preference stage without pairs or whose reference model can't be. number: the stage's index. tasks: by label."""
    where = f"stages.{number}"
    check_reference(config, where, stage)
    for label in config.weights(stage) if stage.on_policy_weights else ():
        if tasks[label].simulation is not None:
            raise UserError(f"{where}.on_policy_weights is for words, and task {label!r} acts in a simulator: drop it")
    for label in config.weights(stage) if stage.pairs == "task" else ():
        if tasks[label].simulation is not None:
            raise UserError(f'{where}.pairs = "task", but task {label!r} acts in a simulator: set pairs = "sampled"')
        if type(tasks[label]).pair is Task.pair:
            raise UserError(f'{where}.pairs = "task", but task {label!r} has no pairs: set pairs = "sampled", or use judge/pairs')

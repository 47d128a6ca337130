"""What a run file comes to before its first step: `resolve` checks it, once, and keeps what it found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from mmrl.algorithms.presets import Algorithm, compose, load_algorithm, with_defaults
from mmrl.api.errors import UserError
from mmrl.api.frames import Eyes
from mmrl.api.interfaces import Task
from mmrl.api.specs import AlgorithmSpec, PolicySpec, VerifierSpec
from mmrl.api.types import Prompt
from mmrl.compute.devices import device_of
from mmrl.config.load import explain
from mmrl.config.sections import DistillStage, RlStage, RunConfig, SftStage, TaskConfig, Training
from mmrl.data.prompts import Indexable, Splits
from mmrl.data.selection import Selected, selected
from mmrl.judge.rewards import Weights, metric_of, weights_of
from mmrl.registry import plugins
from mmrl.train.checks.compute import check_compute
from mmrl.train.checks.run_file import check_acting, check_evaluated, check_prompts, check_rewarded, check_stage, check_verifiers
from mmrl.train.sampling.condition import shown_as
from mmrl.train.trackers import check_trackers


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run file that was checked, with everything that it names looked up and made."""

    config: RunConfig
    """With what its algorithms have by default."""
    device: str
    """The torch device that `policy.device` stands for."""
    policy: PolicySpec
    tasks: Mapping[str, Task]
    """By label, as is all that follows of tasks."""
    weights: Mapping[str, Weights]
    """Verifier id -> its weight in the reward at the beginning and at the end of a stage."""
    metrics: Mapping[str, str]
    """Id of the verifier that evaluates the task."""
    verifiers: Mapping[str, VerifierSpec]
    """Those of rewards and metrics, by the id that asks for them."""
    verifier_options: Mapping[str, Mapping[str, Any]]
    """By the same ids what the run file gives them."""
    algorithms: Sequence[Algorithm | None]
    """Of each stage; None for one that only imitates."""
    splits: Splits
    chosen: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    """(stage, task) -> the numbers of the prompts that the stage's `select` takes; of stages that have one."""

    @functools.cached_property
    def entries(self) -> Mapping[str, TaskConfig]:
        """The `[[tasks]]` entry of each task."""
        return {entry.label: entry for entry in self.config.tasks}

    @property
    def opening(self) -> int:
        """The number of the first stage that isn't a warm start, which is where a run is first evaluated."""
        return next((i for i, s in enumerate(self.config.stages) if not isinstance(s, SftStage)), 0)

    def prompts(self, stage: int, label: str) -> Indexable:
        """The prompts of a task that a stage draws from. stage: its number."""
        items, numbers = self.splits(label, self.config.stages[stage].split), self.chosen.get((stage, label))
        return items if numbers is None else Selected(items, numbers)

    def lend_eyes(self, eyes: Eyes) -> None:
        """Let the tasks know how the policy sees pictures."""
        for task in self.tasks.values():
            task.eyes = eyes
        self.splits.forget()


def resolve(config: RunConfig) -> Setup:
    """Check a run file and look up all that it names. Raises UserError for whatever is wrong with ids, options, splits and
    settings. Loads no model: what of `[policy]` can be refused without that, `check_model` refuses."""
    registry, specs = plugins.registry(), algorithm_specs(config)
    config = with_algorithm_defaults(config, specs)
    device, policy = device_of(config.policy), registry.get("policies", config.policy.kind)
    found = {entry.label: registry.get("tasks", entry.id) for entry in config.tasks}
    tasks = {entry.label: registry.build_task(found[entry.label], entry.options) for entry in config.tasks}
    simulators = check_acting(config, tasks, policy.acts)
    algorithms = tuple(
        algorithm_of(stage, spec, config.generate.max_tokens) for stage, spec in zip(config.stages, specs, strict=True)
    )
    check_compute(config, policy.acts, algorithms)
    weights = {entry.label: weights_of(entry, found[entry.label]) for entry in config.tasks}
    metrics = {entry.label: metric_of(entry, found[entry.label]) for entry in config.tasks}
    verifiers, options = check_verifiers(config.verifiers, weights, metrics, simulators)
    splits, chosen = Splits(tasks, config.seed), {}
    for number, (stage, algorithm) in enumerate(zip(config.stages, algorithms, strict=True)):
        if isinstance(stage, RlStage) and algorithm is not None:
            check_stage(config, number, stage, algorithm, tasks, weights)
        for label in config.weights(stage):
            check_rewarded(label, stage, tasks[label], weights[label])
            items = splits(label, stage.split)
            if stage.select is not None:
                chosen[number, label] = selected(items, stage.select, label, stage.split, config.seed)
                items = Selected(items, chosen[number, label])
            check_prompts(label, stage, items, simulators.get(label))
    check_evaluated(config.evaluate, splits, simulators)
    check_trackers(config.record)
    return Setup(
        config=config,
        device=device,
        policy=policy,
        tasks=tasks,
        weights=weights,
        metrics=metrics,
        verifiers=verifiers,
        verifier_options=options,
        algorithms=algorithms,
        splits=splits,
        chosen=chosen,
    )


def algorithm_specs(config: RunConfig) -> list[AlgorithmSpec | None]:
    """The algorithm of each rl stage, None for other stages."""
    registry = plugins.registry()
    return [registry.get("algorithms", s.algorithm) if isinstance(s, RlStage) else None for s in config.stages]


def with_algorithm_defaults(config: RunConfig, specs: Sequence[AlgorithmSpec | None] | None = None) -> RunConfig:
    """The run file with what its algorithms have by default. specs: of each stage, where they were looked up."""
    stale = config.compute.staleness
    both = zip(config.stages, specs or algorithm_specs(config), strict=True)
    stages = [corrected(with_defaults(s, spec), stale) if isinstance(s, RlStage) and spec else s for s, spec in both]
    try:
        return RunConfig.model_validate(config.model_copy(update={"stages": stages}).model_dump(exclude_unset=True))
    except ValidationError as error:
        raise UserError(f"the run file with the defaults of its algorithms: {explain(error)}") from None


def corrected(stage: RlStage, staleness: int) -> RlStage:
    """The stage with the importance correction on, where a run file with `staleness` doesn't say."""
    if not staleness or "importance" in stage.model_fields_set:
        return stage
    return RlStage.model_validate({**stage.model_dump(exclude_unset=True), "importance": "truncate"})


def algorithm_of(stage: Training, spec: AlgorithmSpec | None, max_tokens: int) -> Algorithm | None:
    """What turns a stage's rewards, or its teacher's log-probabilities, into advantages."""
    if isinstance(stage, DistillStage) and stage.divergence == "sampled":
        return load_algorithm("opd", {})
    return compose(spec, stage.settings, max_tokens) if isinstance(stage, RlStage) and spec else None


def shown_in(stage: Training) -> Callable[[Prompt], Prompt]:
    """How a stage's prompts are shown where it samples or evaluates: as if the answer were going to be good, if it says so."""
    condition = stage.condition.positive if isinstance(stage, RlStage) and stage.condition else ""
    return lambda prompt: shown_as(prompt, condition)

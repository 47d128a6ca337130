"""`resolve`: check a run file and look up everything that it names."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from mmrl.algorithms.presets import Algorithm, compose, load_algorithm, with_defaults
from mmrl.api.errors import UserError
from mmrl.api.processes import sandbox
from mmrl.api.specs import AlgorithmSpec
from mmrl.compute.devices import resolve_device
from mmrl.config.load import describe_validation_error
from mmrl.config.sections import (
    DistillStage,
    HgDaggerStage,
    OffPolicyStage,
    PluginStage,
    PreferenceStage,
    RecapStage,
    RlStage,
    RunConfig,
    Training,
    stage_limit,
)
from mmrl.data.prompts import Splits
from mmrl.data.selection import Subset, selected
from mmrl.judge.rewards import task_metric, weights_of
from mmrl.policies.load import token_kind
from mmrl.registry import plugins
from mmrl.train.checks.compute import check_compute
from mmrl.train.checks.experts import check_experts
from mmrl.train.checks.gold_rewards import check_answers_known
from mmrl.train.checks.images import check_changed_images, check_images_shown
from mmrl.train.checks.of_plugins import check_plugin_stage, plugin_alarms
from mmrl.train.checks.off_policy import check_experience, check_gripper, check_off_policy
from mmrl.train.checks.preferences import check_preference, check_rating
from mmrl.train.checks.run_file import (
    check_acting,
    check_evaluated,
    check_prompts,
    check_rewarded,
    check_scored,
    check_stage,
    check_tokens,
    check_trained_on,
    check_verifiers,
)
from mmrl.train.setup import Setup
from mmrl.train.trackers import check_trackers


def resolve(config: RunConfig, train: bool = True) -> Setup:
    """Check a run file and look up everything that it names. Raises UserError if ids, options, splits or settings are wrong.
    Loads no model; `check_model` checks `[policy]`. train: with False, the stages won't run, and their prompts aren't looked up:
    a task may have none to train on."""
    registry, specs = plugins.registry(), algorithm_specs(config)
    config = with_algorithm_defaults(config, specs)
    device, policy = resolve_device(config.policy), registry.get("policies", config.policy.kind)
    found = {entry.label: registry.get("tasks", entry.id) for entry in config.tasks}
    tasks = {entry.label: registry.build_task(found[entry.label], entry.options) for entry in config.tasks}
    simulators = check_acting(config, tasks, policy.acts)
    algorithms = _algorithms(config, specs)
    check_experts(config, policy.acts)
    check_compute(config, policy.acts, algorithms)
    if config.judge.isolation == "strict" and not config.compute.judges:  # judges on other machines check for themselves
        sandbox.wrapper()
    check_rating(config, tasks, policy.rates)
    weights = {entry.label: weights_of(entry, found[entry.label]) for entry in config.tasks}
    metrics = {entry.label: task_metric(entry, found[entry.label]) for entry in config.tasks}
    check_scored(tasks, weights, metrics)
    verifiers, options = check_verifiers(config.verifiers, weights, metrics, simulators)
    splits, chosen = Splits(tasks, config.seed), {}
    token = token_kind(config.policy, policy)
    for number, (stage, algorithm) in enumerate(zip(config.stages, algorithms, strict=True)):
        check_tokens(f"stages.{number}", config.policy.kind, token, stage, algorithm)
        if isinstance(stage, RlStage) and algorithm is not None:
            check_stage(config, number, stage, algorithm, tasks, weights)
            check_changed_images(config, number, stage, algorithm, policy.acts)
        if isinstance(stage, PreferenceStage):
            check_preference(config, number, stage, tasks)
        if train and policy.acts:
            check_gripper(config, number, stage, policy)
        if isinstance(stage, OffPolicyStage) and train:
            check_off_policy(config, number, stage, policy, tasks, simulators, weights)
        if isinstance(stage, RecapStage | HgDaggerStage) and train:
            check_experience(config, number, stage, policy, simulators)
        if isinstance(stage, PluginStage):
            check_plugin_stage(f"stages.{number}", stage)
        for label in config.weights(stage) if train else ():
            check_trained_on(label, number, stage, tasks[label])
            check_rewarded(label, stage, tasks[label], weights[label])
            items = splits(label, stage.split)
            if stage.select is not None:
                chosen[number, label] = selected(items, stage.select, label, stage.split, config.seed)
                items = Subset(items, chosen[number, label])
            check_prompts(label, stage, items, simulators.get(label))
        if isinstance(stage, RlStage) and train:
            check_images_shown(config, number, stage, splits)
            assert algorithm is not None
            check_answers_known(config, number, stage, algorithm, tasks, splits)
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
        alarms=plugin_alarms(config),
    )


def _algorithms(config: RunConfig, specs: Sequence[AlgorithmSpec | None]) -> tuple[Algorithm | None, ...]:
    found = []
    for number, (stage, spec) in enumerate(zip(config.stages, specs, strict=True)):
        try:
            found.append(algorithm_of(stage, spec, stage_limit(config, stage)))
        except UserError as error:
            raise type(error)(f"stages.{number}: {error}") from error
    return tuple(found)


def algorithm_specs(config: RunConfig) -> list[AlgorithmSpec | None]:
    """The spec of each rl stage's algorithm; None for other stages. Raises UserError with the stage for an unknown one."""
    registry, specs = plugins.registry(), list[AlgorithmSpec | None]()
    for number, stage in enumerate(config.stages):
        try:
            specs.append(registry.get("algorithms", stage.algorithm) if isinstance(stage, RlStage) else None)
        except UserError as error:
            raise type(error)(f"stages.{number}.algorithm: {error}") from error
    return specs


def with_algorithm_defaults(config: RunConfig, specs: Sequence[AlgorithmSpec | None] | None = None) -> RunConfig:
    """The run file with the defaults of its algorithms. specs: one per stage; looked up here if None."""
    stale = config.compute.staleness
    both = zip(config.stages, specs or algorithm_specs(config), strict=True)
    stages = [
        with_importance_sampling(with_defaults(s, spec), stale) if isinstance(s, RlStage) and spec else s for s, spec in both
    ]
    try:
        return RunConfig.model_validate(config.model_copy(update={"stages": stages}).model_dump(exclude_unset=True))
    except ValidationError as error:
        raise UserError(f"the run file with the defaults of its algorithms: {describe_validation_error(error)}") from None


def with_importance_sampling(stage: RlStage, staleness: int) -> RlStage:
    """The stage with importance sampling, if the run samples asynchronously and the run file doesn't set it."""
    if not staleness or "importance_sampling" in stage.model_fields_set or stage.ratio_to == "sampler":
        return stage
    return RlStage.model_validate({**stage.model_dump(exclude_unset=True), "importance_sampling": "truncate"})


def algorithm_of(stage: Training, spec: AlgorithmSpec | None, max_tokens: int) -> Algorithm | None:
    """The algorithm of an rl stage, or of a distill stage with `divergence = "sampled"`; None for other stages."""
    if isinstance(stage, DistillStage) and stage.divergence == "sampled":
        return load_algorithm("opd", {})
    return compose(spec, stage.settings, max_tokens) if isinstance(stage, RlStage) and spec else None

"""Checks of a run file, before anything is loaded. `mmrl.train.resolve.resolve` calls them and keeps their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.algorithms.presets import Algorithm, check_bounds
from mmrl.api.errors import UserError, did_you_mean, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.simulators.types import Simulation
from mmrl.api.specs import PolicySpec, SimulatorSpec, VerifierSpec
from mmrl.api.tokens import TokenKind
from mmrl.compute.devices import check_device, following_device
from mmrl.config.sections import (
    EXPERT,
    DistillStage,
    EvaluateConfig,
    OffPolicyStage,
    PolicyConfig,
    PreferenceStage,
    RlStage,
    RunConfig,
    SftStage,
    Training,
    teacher_of,
)
from mmrl.data.prompts import Indexable, Splits, prompt_at
from mmrl.data.stream import easy_first
from mmrl.judge.rewards import Weights
from mmrl.policies.load import checked_options, policy_class
from mmrl.registry import plugins
from mmrl.rollout.environments import has_environment
from mmrl.train.checks.corrections import check_corrections
from mmrl.train.checks.critics import check_critic, check_turn_critic
from mmrl.train.checks.off_policy import check_one_action
from mmrl.train.checks.parts import check_parts
from mmrl.train.checks.preferences import check_reference
from mmrl.train.sampling.rules import check_plugin_rules


def check_verifiers(
    given: Mapping[str, Mapping[str, Any]],
    weights: Mapping[str, Weights],
    metrics: Mapping[str, str],
    simulators: Mapping[str, SimulatorSpec],
) -> tuple[dict[str, VerifierSpec], dict[str, Mapping[str, Any]]]:
    """Every verifier that the run calls, for rewards or for evaluation: its spec and its options, by the id in the run file.
    Refuses options of verifiers that the run doesn't call. given: `[verifiers]`; the other mappings are by task."""
    registry = plugins.registry()
    names = dict.fromkeys([*(name for verifiers in weights.values() for name in verifiers), *metrics.values()])
    specs: dict[str, VerifierSpec] = {name: registry.get("verifiers", name) for name in names}
    used = {spec.id for spec in specs.values()}
    own: dict[str, Mapping[str, Any]] = {}
    for name, settings in given.items():
        id = specs[name].id if name in specs else registry.get("verifiers", name).id
        if id not in used:
            raise UserError(f"verifiers.{name} has options, but no task of this run uses it: use {', '.join(sorted(used))}")
        own[id] = settings
    options = {name: own.get(spec.id, {}) for name, spec in specs.items()}
    cameras: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in specs}
    for label, simulator in simulators.items():
        for name in (*weights[label], metrics[label]):
            cameras[name][label] = simulator.cameras
    return {name: registry.bounded_verifier(spec, options[name], cameras[name]) for name, spec in specs.items()}, options


def check_scored(tasks: Mapping[str, Task], weights: Mapping[str, Weights], metrics: Mapping[str, str]) -> None:
    """Refuse tasks that ask for what their verifiers don't score. All by label."""
    for label, task in tasks.items():
        try:
            with plugin_errors(f"{type(task).__name__}.check_verifiers()"):
                task.check_verifiers(dict.fromkeys([*weights[label], metrics[label]]))
        except UserError as error:
            raise type(error)(f"task {label!r}: {error}") from error


def check_rewarded(label: str, stage: Training, task: Task, weights: Weights) -> None:
    """Refuse a stage that compares rewards and in which a task has none. An environment may pay, which its replies show."""
    rewarded = (
        stage.labels == "task" if isinstance(stage, RlStage) else isinstance(stage, PreferenceStage) and stage.pairs == "sampled"
    )
    paid = has_environment(task) if task.simulation is None else task.simulation.reward != "none"
    registry = plugins.registry()
    ids = [rule.id for rule in stage.rules] if isinstance(stage, RlStage | OffPolicyStage) else []
    rules = [registry.target(registry.get("sampling_rules", id)) for id in ids]
    paid = paid or any(getattr(rule, "rewards", False) for rule in rules)
    if rewarded and not paid and not any(map(any, weights.values())):
        raise UserError(f"tasks {label!r}: all its verifiers have weight 0, so it has no reward: give one a weight")


def check_trained_on(label: str, number: int, stage: Training, task: Task) -> None:
    """Refuse a stage that trains on a split which is only for evaluation. number: the stage's index."""
    free = [split for split in task.splits if split not in task.held_out]
    if stage.split in task.held_out or not free:
        cure = (
            f"train on {' or '.join(free)}"
            if free
            else f"list the other tasks in stages.{number}.tasks, and it is evaluated alone"
        )
        raise UserError(f"task {label!r}: its split {stage.split if free else task.splits[0]!r} is only for evaluation: {cure}")


def check_prompts(label: str, stage: Training, items: Indexable, simulator: SimulatorSpec | None) -> None:
    """Refuse prompts from which a stage can't draw. items: the task's split, after the stage's `select`."""
    check_variant(label, items, simulator)
    if stage.order == "easy-first":
        easy_first(items, label)


def check_evaluated(evaluate: EvaluateConfig, splits: Splits, simulators: Mapping[str, SimulatorSpec]) -> None:
    """Refuse held-out prompts that can't be evaluated."""
    for label in splits.tasks if evaluate.num_prompts else ():
        check_variant(label, splits(label, evaluate.split), simulators.get(label))


def check_acting(config: RunConfig, tasks: Mapping[str, Task], acts: bool) -> dict[str, SimulatorSpec]:
    """The simulators of the tasks that act in one, by label. Refuses tasks that don't fit the policy or each other, and keys that
    have no effect on policies that act. acts: the policy acts in simulators."""
    acted = [label for label, task in tasks.items() if task.simulation is not None]
    spoken = [label for label in tasks if label not in acted]
    if acted and spoken:
        raise UserError(
            f"task {acted[0]!r} acts in a simulator, but task {spoken[0]!r} is answered in words: train them in two runs"
        )
    if acted and not acts:
        raise UserError(
            f"task {acted[0]!r} acts in a simulator, but policy.kind = {config.policy.kind!r} writes: use one of "
            + ", ".join(spec.id for spec in plugins.registry().specs("policies").values() if spec.acts)
        )
    if acts and not acted:
        raise UserError(
            f"policy.kind = {config.policy.kind!r} acts in simulators, but task {spoken[0]!r} is answered in words: change one"
        )
    if acted and config.evaluate.steer:
        raise UserError(f"evaluate.steer is for answers in words to videos, but task {acted[0]!r} acts: leave it out")
    simulators: dict[str, SimulatorSpec] = {}
    for label in acted:
        simulation = tasks[label].simulation
        if simulation is not None and simulation.simulator:
            simulators[label] = plugins.registry().get("simulators", simulation.simulator)
            check_cameras(label, config.policy.options, simulation, simulators[label])
        else:
            check_imitated(config, label)
    for number, stage in enumerate(config.stages):
        if isinstance(stage, DistillStage):
            check_distilled(config, number, stage, simulators)
        if not isinstance(stage, RlStage):
            continue
        if stage.minibatches > stage.prompts_per_step and not acts:  # the calls of policies that act are dealt out singly
            raise UserError(
                f"{stage.minibatches} is above prompts_per_step = {stage.prompts_per_step}, and groups aren't split: lower it",
                key=f"stages.{number}.minibatches",
            )
        odd = [
            key
            for key, off in (("hints", "none"), ("labels", "task"), ("ground_truth", "never"), ("length", None))
            if getattr(stage, key) != off
        ]
        if acts and (odd or stage.overlong != "keep" or stage.overlong_buffer):
            raise UserError(
                f"stages.{number}.{odd[0] if odd else 'overlong'} is for answers in words, but {acted[0]!r} acts: leave it out"
            )
    if acted and config.simulate.device != "auto":
        check_device("simulate.device", config.simulate.device)
    if acted and config.simulate.policy_device != "auto":
        check_device("simulate.policy_device", following_device(config.simulate.policy_device))
    return simulators


def check_simulators(config: RunConfig, tasks: Mapping[str, Task]) -> None:
    """Refuse options that simulators don't take, without making one. Those that run elsewhere aren't on this machine. tasks: by
    label."""
    if config.simulate.address or config.compute.simulators == "actors":
        return
    for label, task in tasks.items():
        if task.simulation is not None and task.simulation.simulator:
            try:
                plugins.registry().check_simulator(task.simulation)
            except UserError as error:
                raise type(error)(f"task {label!r}: {error}") from error


def check_variant(label: str, items: Indexable, spec: SimulatorSpec | None) -> None:
    """Refuse a variant of the environment that the task's simulator doesn't have. Checks the first prompt only."""
    if spec is None:
        return
    variant = prompt_at(items, 0, label).meta.get("variant")
    if variant is not None and variant not in spec.variants:
        known = (
            f"it has {', '.join(spec.variants)}.{did_you_mean(str(variant), spec.variants)}" if spec.variants else "it has none"
        )
        raise UserError(f"task {label!r}: simulator {spec.id!r} has no variant {variant!r:.60}: {known}")


def check_imitated(config: RunConfig, label: str) -> None:
    """Refuse a stage or an evaluation that needs to play episodes of a task without a simulator."""
    for number, stage in enumerate(config.stages):
        if stage.kind != "sft" and label in config.weights(stage):
            raise UserError(
                f'stages.{number}: task {label!r} has demonstrations but no simulator, which kind = "{stage.kind}" needs: '
                "set the task's option simulator, or leave the task out of the stage"
            )
    if config.evaluate.num_prompts:
        raise UserError(
            f"task {label!r} has demonstrations but no simulator, which evaluation needs: set the task's option simulator, or "
            "set evaluate.num_prompts = 0"
        )


def check_distilled(config: RunConfig, number: int, stage: DistillStage, simulators: Mapping[str, SimulatorSpec]) -> None:
    """Refuse a teacher that the stage can't use. simulators: by label of the task that acts in one; none for a policy that
    writes."""
    where, expert = f"stages.{number}", stage.teacher == EXPERT
    if expert and not simulators:
        raise UserError(f'{where}.teacher = "expert" needs a simulator, but these tasks are answered in words: name a model')
    if simulators and stage.divergence != ("hard" if expert else "sampled"):
        wanted = '"hard", which imitates its actions' if expert else '"sampled"; the others are for words'
        raise UserError(f'{where}.divergence = "{stage.divergence}": with this teacher a policy that acts needs {wanted}')
    for label in config.weights(stage) if expert else ():
        if "expert" not in simulators[label].capabilities:
            raise UserError(f"{where}.teacher: simulator {simulators[label].id!r} of task {label!r} has no expert: name a model")
    if expert:
        check_one_action(config.policy, f"{where}.teacher")


def check_stage(
    config: RunConfig,
    number: int,
    stage: RlStage,
    algorithm: Algorithm,
    tasks: Mapping[str, Task],
    weights: Mapping[str, Weights],
) -> None:
    """Refuse an rl stage whose algorithm doesn't support its keys. tasks, weights: by label."""
    where, extra = f"stages.{number}", 1 if stage.ground_truth == "always" else 0
    check_bounds(f"{where}.settings", stage.settings, algorithm.bounds)
    if algorithm.compares and stage.settings.get("baseline") != "batch":
        for entry in config.tasks:
            size = entry.group_size or stage.group_size
            if size + extra < 2 and entry.label in config.weights(stage):
                key = f"tasks {entry.label!r} group_size" if entry.group_size else f"{where}.group_size"
                raise UserError(
                    f"{key} = {size}, but {stage.algorithm} compares completions of the same prompt: sample at least 2"
                )
    check_critic(config, where, stage, algorithm)
    check_turn_critic(config, where, stage, algorithm)
    if stage.labels != "task":
        _check_voted(f'{where}.labels = "{stage.labels}"', stage, algorithm)
    if stage.imitation and stage.imitation.rule == "hpt":
        for key in ("dynamic_sampling", "min_success_rate"):  # here, as they may be the algorithm's defaults
            if getattr(stage, key):
                raise UserError(f'{where}.{key} leaves out the prompts that imitation.rule = "hpt" imitates: set it to 0')
    if stage.condition and algorithm.has_critic:
        raise UserError(f"{where}.condition imitates completions and never trains the critic of {stage.algorithm}: drop one")
    if stage.credit != "token" and "units_NT" not in algorithm.needs:
        raise UserError(f'{where}.credit = "{stage.credit}" needs a critic, but {stage.algorithm} has none: drop it')
    if "states_NT" in algorithm.needs and stage.credit not in ("turn", "chunk"):
        raise UserError(f'{where}.credit = "{stage.credit}" divides turns, which {stage.algorithm} compares: set credit = "turn"')
    whole = "credit" if stage.credit in ("turn", "chunk") else "ratio" if stage.ratio == "chunk" else ""
    if whole and "turns_NT" in algorithm.needs:
        raise UserError(
            f'{where}.{whole} = "{getattr(stage, whole)}" leaves a turn in one piece, within which {stage.algorithm} gives '
            f'credit: set {whole} = "token", or use ppo'
        )
    if stage.state_similarity < 1 and "states_NT" not in algorithm.needs:
        raise UserError(f"{where}.state_similarity has no effect, as {stage.algorithm} doesn't compare states: use gigpo")
    check_corrections(where, stage, algorithm)
    for key, used in (("kl_target", stage.kl_coef), ("reference_every", stage.refers)):  # kl_coef may be the algorithm's default
        if getattr(stage, key) and not used:
            raise UserError(f"{where}.{key} is set, but kl_coef = 0, so there is no penalty: set kl_coef, or drop {key}")
    if stage.consistency and plugins.registry().get("policies", config.policy.kind).acts:
        raise UserError(f"{where}.consistency reads answers of a policy that writes, and {config.policy.kind} acts: drop it")
    if stage.curriculum and plugins.registry().get("policies", config.policy.kind).acts:
        raise UserError(f"{where}.curriculum measures prompts of a policy that writes, and {config.policy.kind} acts: drop it")
    taught = "teacher_logprobs_NT" in algorithm.needs
    if stage.teacher == EXPERT:
        raise UserError(f'{where}.teacher = "expert" is for a distill stage: name a checkpoint, which can score completions')
    if taught != bool(stage.teacher):
        what = "needs a teacher: set teacher to a checkpoint" if taught else "doesn't use one: drop it, or use kdrl or opd"
        raise UserError(f"{where}.teacher: {stage.algorithm} {what}")
    check_reference(config, where, stage)
    rewarding = sorted({verifier for verifiers in weights.values() for verifier in verifiers})
    check_named(where, stage, rewarding)
    check_plugin_rules(where, stage, weights, tasks)
    for label, task in tasks.items() if stage.labels == "co-reward" else ():
        if type(task).rephrase is Task.rephrase and label in config.weights(stage):
            raise UserError(f"{where}.labels: task {label!r} has no rephrase(), which co-reward needs: write one, or use ttrv")


def _check_voted(where: str, stage: RlStage, algorithm: Algorithm) -> None:
    """Refuse what needs the task's answers, where votes are the labels."""
    if "baselines_N" in algorithm.needs:
        raise UserError(
            f"{where}: {stage.algorithm} compares with the reward of a greedy completion, which needs the task's answers: use "
            "another algorithm"
        )
    if "told_logprobs_NT" in algorithm.needs:
        raise UserError(f"{where}: {stage.algorithm} tells the policy the answer, which is to be known: use grpo")
    if stage.entropy_control:
        raise UserError(f"{where}: entropy_control imitates right answers, which the task must know: drop one")


def check_tokens(where: str, kind: str, token: TokenKind, stage: Training, algorithm: Algorithm | None) -> None:
    """Refuse an algorithm, units and weights that have no meaning for the policy's tokens. where: the stage's key. kind:
    `policy.kind`."""
    own = f"the tokens of policy.kind = {kind!r} are {token.value}"
    if algorithm is not None and token not in algorithm.tokens:
        known = ", ".join(each.value for each in TokenKind if each in algorithm.tokens)
        raise UserError(f"{where}: {algorithm.id} learns on {known}, and {own}: use another algorithm, such as grpo or ppo")
    if isinstance(stage, SftStage) and stage.token_weights == "probability" and not token.discrete:
        raise UserError(f'{where}.token_weights = "probability": {own}, which have densities: leave it out')
    if not isinstance(stage, RlStage):
        return
    if stage.ratio != "token" and not token.acts:
        raise UserError(f'{where}.ratio = "{stage.ratio}" is for policies that act, and {own}: leave it out')
    whole: dict[str, float | str | None] = {"off_policy_mask": stage.off_policy_mask}
    whole["gap_mask"] = None if stage.gap_level == "token" else stage.gap_mask
    whole[f'importance_sampling_level = "{stage.importance_sampling_level}"'] = stage.importance_sampling_level
    for key, value in whole.items():
        if value not in (None, "token") and token.acts:
            raise UserError(f"{where}.{key} is about whole completions of policies that write, and {own}: leave it out")
    for key in ("ratio", "credit"):
        if getattr(stage, key) == "action" and token.says_chunk:
            raise UserError(f'{where}.{key} = "action": {own}, and no action has tokens of its own: use "token" or "chunk"')


def check_cameras(label: str, options: Mapping[str, Any], simulation: Simulation, simulator: SimulatorSpec) -> None:
    """Refuse cameras of `[policy.options]` that a task's simulator doesn't have."""
    asked = options.get("cameras") or [options.get("camera")]
    chosen = simulation.options.get("cameras")  # a simulator with several may be told which to render
    known = [str(name) for name in chosen] if isinstance(chosen, list | tuple) and chosen else list(simulator.cameras)
    for name in asked if isinstance(asked, list | tuple) else ():
        if name and known and name not in known:
            key = "cameras" if options.get("cameras") else "camera"
            raise UserError(
                f"policy.options.{key} names {name!r}, which simulator {simulator.id!r} of task {label!r} doesn't show: it shows "
                f"{', '.join(known)}"
            )


def check_named(where: str, stage: RlStage, rewarding: Sequence[str]) -> None:
    """Refuse verifiers that a stage names but that reward nothing. where: the stage's key. rewarding: those that do reward."""
    known = ", ".join(rewarding)
    if unknown := [v for v in stage.ground_truth_without if v not in rewarding]:
        raise UserError(f"{where}.ground_truth_without names {unknown[0]!r}, which rewards nothing here: name one of {known}")
    for key, section in (("length", stage.length), ("epoch_filter", stage.epoch_filter)):
        if section and section.verifier not in {"", *rewarding}:
            raise UserError(f"{where}.{key}.verifier names {section.verifier!r}, which rewards nothing here: name one of {known}")


def check_trainable(policy: PolicySpec) -> None:
    """Refuse to train a policy that is only evaluated."""
    if not policy.trainable:
        raise UserError(f'policy.kind = "{policy.id}" can only be evaluated: write mmrl eval instead of mmrl train')


def check_model(config: RunConfig, policy: PolicySpec, online: bool = False) -> None:
    """Refuse a `[policy]` that can't be loaded, as far as its kind can check without loading. Not called for a checkpoint, which
    doesn't need that model. online: for `compute.sequence_parallel`, hub names are looked up."""
    kind = policy_class(policy)
    checked_options(config.policy, policy)
    if kind.trained_whole:
        for key, given in (("policy.lora", config.policy.lora), ("stages.parts", any(s.parts for s in config.stages))):
            if given:
                raise UserError(f"{key}: a policy of kind {config.policy.kind!r} always trains all its weights: leave it out")
    kind.check(config.policy)
    check_shared_rows(config, config.policy, online)
    for number, stage in enumerate(config.stages):
        if teacher := teacher_of(stage):
            try:
                kind.check(config.policy.model_copy(update={"model": teacher}))
                kind.check_teacher(config.policy, teacher)
                check_shared_rows(config, config.policy.model_copy(update={"model": teacher}), online)
            except UserError as error:
                raise of_teacher(error, number) from error
    critics = [i for i, s in enumerate(config.stages) if isinstance(s, RlStage) and s.critic]
    check_parts(config, critics, kind.skeleton, kind.own_names)


def check_shared_rows(config: RunConfig, policy: PolicyConfig, online: bool) -> None:
    """Refuse a model whose rows several learners can't share."""
    if config.compute.sequence_parallel > 1:
        from mmrl.policies.vlm.sharable import check_sharable  # imports transformers

        check_sharable(policy, config.compute.sequence_parallel, online)


def of_teacher(error: UserError, number: int) -> UserError:
    """An error about `policy.model` as an error about a stage's teacher."""
    return UserError(error.what, key=f"stages.{number}.teacher")

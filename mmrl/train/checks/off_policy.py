"""Checks of stages that learn from a memory, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.api.annotations import parameters_of
from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.specs import PolicySpec, SimulatorSpec
from mmrl.config.off_policy import EXPERT_EPISODES, RECORDED_EPISODES
from mmrl.config.sections import HgDaggerStage, OffPolicyStage, PolicyConfig, RecapStage, RunConfig, Stage
from mmrl.judge.rewards import Weights
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.saved_policy import saved_options
from mmrl.policies.load import config_beneath, policy_class
from mmrl.policies.squashed import Squashed
from mmrl.policies.steered import Steered
from mmrl.registry import plugins
from mmrl.train.sampling.rules import check_plugin_rules, plugin_rules


def check_off_policy(
    config: RunConfig,
    number: int,
    stage: OffPolicyStage,
    policy: PolicySpec,
    tasks: Mapping[str, Task],
    simulators: Mapping[str, SimulatorSpec],
    weights: Mapping[str, Weights],
) -> None:
    """Refuse an off-policy stage whose policy, tasks or computers it can't learn with. number: the stage's index. tasks,
    simulators, weights: by label."""
    where, labels = f"stages.{number}", list(config.weights(stage))
    _check_one_process(config, where, stage.kind)
    check_plugin_rules(where, stage, weights, tasks)
    learned = any(rule.revision is not None for rule in plugin_rules(stage))
    kind = policy_class(policy)
    if stage.improve and not issubclass(kind, ActingPolicy):
        raise UserError(f"{where}.improve: policy.kind = {config.policy.kind!r} doesn't act: use one that does")
    if not stage.improve and not getattr(kind, "remembers", False):
        raise UserError(
            f'{where}: kind = "off-policy" needs actions with a gradient by the policy\'s weights, which policy.kind = '
            f'{config.policy.kind!r} doesn\'t give: use "squashed", or set improve, which needs none'
        )
    if stage.noise_aliasing and not issubclass(kind, Steered):
        raise UserError(
            f'{where}.noise_aliasing: policy.kind = {config.policy.kind!r} chooses no noise: use "steered", or leave it out'
        )
    if not getattr(kind, "imitates", True):
        theirs = stage.offline in (EXPERT_EPISODES, RECORDED_EPISODES)
        asked = {"interventions": stage.interventions, "offline": theirs}
        for key in (key for key, given in asked.items() if given and not stage.noise_aliasing):
            raise UserError(
                f"{where}.{key}: policy.kind = {config.policy.kind!r} chooses noise, which nobody else's actions have: set "
                "noise_aliasing, or leave it out"
            )
        if stage.improve:
            raise UserError(
                f"{where}.improve: policy.kind = {config.policy.kind!r} chooses noise, which no other action has: leave it out"
            )
    if stage.offline_steps and learned:
        raise UserError(f"{where}.offline_steps: the rule learns what to pay from what is played: leave out offline_steps")
    if stage.improve and stage.improve.state and issubclass(kind, Squashed):
        raise UserError(f"{where}.improve.state: the critics of this policy read what it reads: set policy.options.state")
    if not stage.improve and issubclass(kind, Squashed) and bool(stage.td3) != bool(config.policy.options.get("noise")):
        raise UserError(
            f"{where}: td3 explores by a noise that is given, and {'iql' if stage.iql else 'the soft actor-critic'} learns it: "
            + ("set policy.options.noise, such as 0.1, or drop td3" if stage.td3 else "set td3, or drop policy.options.noise")
        )
    _check_interventions(config, where, stage, labels, simulators)
    several = list(dict.fromkeys(simulators[label].id for label in labels if label in simulators))
    if len(several) > 1:
        raise UserError(f"{where}: tasks of {several[0]!r} and {several[1]!r} can't share a memory: give each a stage or a run")
    if stage.offline == EXPERT_EPISODES:
        for label in labels:
            if label in simulators and "expert" not in simulators[label].capabilities:
                raise UserError(f"{where}.offline: simulator {simulators[label].id!r} of {label!r} has no expert: name a file")
            simulation, verified = tasks[label].simulation, any(map(any, weights[label].values()))
            if simulation is not None and simulation.reward == "none" and not learned and not verified:
                raise UserError(
                    f'{where}.offline = "{EXPERT_EPISODES}": nothing pays the expert\'s episodes of task {label!r}: give a '
                    "verifier a weight, or reward it by stages"
                )
    elif stage.offline == RECORDED_EPISODES:
        for label in labels:
            if type(tasks[label]).recorded_episodes is Task.recorded_episodes:
                raise UserError(
                    f'{where}.offline = "{RECORDED_EPISODES}": task {label!r} has no recorded episodes: use robotics/demos'
                )
    elif stage.offline and (asks := _asks_for_pictures(stage, kind, config.policy.kind)):
        raise UserError(
            f'{where}.offline = {stage.offline!r}: a memory has no pictures for {asks}: use "{EXPERT_EPISODES}" or '
            f'"{RECORDED_EPISODES}"'
        )
    elif stage.offline and not Path(stage.offline).is_file():
        raise UserError(
            f"{where}.offline = {stage.offline!r} is no file: name a memory, such as runs/NAME/checkpoints/step-.../"
            f'memory.safetensors, "{EXPERT_EPISODES}", or "{RECORDED_EPISODES}"'
        )


def _asks_for_pictures(stage: OffPolicyStage, policy: type, kind: str) -> str:
    """Who needs the pictures of offline data, and for what; empty: nobody."""
    if stage.improve and not issubclass(policy, Squashed):
        return f"policy.kind = {kind!r} to imitate"
    if stage.noise_aliasing:
        return "the base to act on"
    return "rules to pay for" if stage.rules else ""


def check_gripper(config: RunConfig, number: int, stage: Stage, policy: PolicySpec) -> None:
    """Refuse a stage that doesn't learn what the gripper of the policy chooses, and a penalty that nobody pays. number: the
    stage's index."""
    where, options = f"stages.{number}", {**saved_options(Path(config.policy.model)), **config.policy.options}
    choices = options.get("gripper_choices", 0) if issubclass(policy_class(policy), Squashed) else 0
    learns = isinstance(stage, OffPolicyStage) and not stage.way
    if choices and not learns:
        raise UserError(
            f'{where}: policy.options.gripper_choices = {choices} is learned by kind = "off-policy" alone, without '
            "improve, td3, iql and crossq: set it to 0, or use that"
        )
    asked = stage.gripper if isinstance(stage, OffPolicyStage) else None
    if asked and not choices:
        raise UserError(
            f"{where}.gripper is paid by a critic that policy.options.gripper_choices gives the gripper: set that, or drop it"
        )
    if asked and asked.state >= options.get("state", 0):
        raise UserError(
            f"{where}.gripper.state = {asked.state} is none of the {options.get('state', 0)} numbers of the state, from 0, that "
            "the policy reads: raise policy.options.state"
        )


def check_experience(
    config: RunConfig, number: int, stage: RecapStage | HgDaggerStage, policy: PolicySpec, simulators: Mapping[str, SimulatorSpec]
) -> None:
    """Refuse a stage that imitates remembered episodes, and whose policy, tasks or computers it can't learn with. number: the
    stage's index. simulators: by label."""
    where, kind = f"stages.{number}", policy_class(policy)
    if not issubclass(kind, ActingPolicy):
        raise UserError(
            f'{where}: kind = "{stage.kind}": policy.kind = {config.policy.kind!r} doesn\'t act in simulators: use one that does'
        )
    if not getattr(kind, "imitates", True):
        raise UserError(
            f'{where}: kind = "{stage.kind}": policy.kind = {config.policy.kind!r} chooses noise, which nobody else\'s actions '
            "have: use another policy"
        )
    if isinstance(stage, RecapStage) and not kind.reads_text:
        raise UserError(
            f'{where}: kind = "recap" tells the policy how good an action was, and policy.kind = {config.policy.kind!r} reads no '
            "instruction: use another stage or policy"
        )
    _check_one_process(config, where, stage.kind)
    _check_interventions(config, where, stage, list(config.weights(stage)), simulators)


def _check_interventions(
    config: RunConfig,
    where: str,
    stage: OffPolicyStage | RecapStage | HgDaggerStage,
    labels: Sequence[str],
    simulators: Mapping[str, SimulatorSpec],
) -> None:
    """Refuse an expert that a simulator doesn't have, or that can't take a policy's place."""
    for key in ("expert_episodes", "interventions"):
        for label in labels if getattr(stage, key, 0) else ():
            if label in simulators and "expert" not in simulators[label].capabilities:
                raise UserError(f"{where}.{key}: simulator {simulators[label].id!r} of {label!r} has no expert: set it to 0")
    if stage.interventions:
        check_one_action(config.policy, f"{where}.interventions")


def check_one_action(acting: PolicyConfig, where: str) -> None:
    """Refuse a policy that carries out several actions in each call, in whose place an expert, who gives one, is to act. Where
    only the files of a policy say how many, as LeRobot's, it is refused once they are read. where: the key that asks for it."""
    options, cure = _options(acting), "set policy.options.chunk = 1"
    if issubclass(policy_class(plugins.registry().get("policies", acting.kind)), Steered):  # its base says how many
        base = options.get("base", "")
        cure = "set chunk = 1 in policy.options.base.options" if isinstance(base, Mapping) else "take a base whose chunk is 1"
        options = _options(config_beneath(base, acting))
    if options.get("chunk") not in (None, 1):
        raise UserError(f"{where}: an expert gives one action at a time: {cure}")


def _options(acting: PolicyConfig) -> dict[str, Any]:
    """The options of a policy: those that are given, those that it was saved with, and the usual ones."""
    spec = plugins.registry().get("policies", acting.kind)
    usual = {p.name: p.default for p in parameters_of(policy_class(spec)) if p.default is not p.empty}
    return {**usual, **spec.options, **saved_options(Path(acting.model)), **acting.options}


def _check_one_process(config: RunConfig, where: str, kind: str) -> None:
    if config.compute.learners > 1:
        raise UserError(f'{where}: kind = "{kind}" learns in one process: set compute.learners = 1')
    if config.compute.staleness:
        raise UserError(f'{where}: kind = "{kind}" learns from old episodes anyway: leave out compute.staleness')

"""Checks of `[stages.critic]` and `[stages.turn_critic]`, before anything is loaded."""

from __future__ import annotations

from mmrl.algorithms.loss import negative_log_likelihood
from mmrl.algorithms.presets import Algorithm
from mmrl.api.errors import UserError
from mmrl.config.sections import RlStage, RunConfig
from mmrl.registry import plugins


def check_critic(config: RunConfig, where: str, stage: RlStage, algorithm: Algorithm) -> None:
    """Refuse a critic that nothing reads, that leaves the policy no step, or whose `bootstrap` has no effect. where: the stage's
    key."""
    key, critic = f"{where}.critic", stage.critic
    if critic is None:
        return
    if not algorithm.has_critic:
        raise UserError(f"{key} is given, but {stage.algorithm} doesn't use one: drop it, or use an algorithm like ppo")
    if critic.warmup_steps >= stage.steps:
        raise UserError(f"{key}.warmup_steps = {critic.warmup_steps} leaves the policy none of {stage.steps} steps: lower it")
    if critic.bootstrap == "always" and not plugins.registry().get("policies", config.policy.kind).acts:
        raise UserError(
            f'{key}.bootstrap = "always" is for episodes in simulators, and {config.policy.kind!r} writes: nothing follows '
            "its last word; leave it out"
        )
    if critic.bootstrap == "always" and "bootstrap_N" not in algorithm.needs:
        raise UserError(f'{key}.bootstrap = "always", but {stage.algorithm} never bootstraps: leave it out, or use ppo')


def check_turn_critic(config: RunConfig, where: str, stage: RlStage, algorithm: Algorithm) -> None:
    """Refuse a turn critic that nothing reads, or that can't learn here, and an algorithm without the one that it needs. where:
    the stage's key."""
    key, critic = f"{where}.turn_critic", stage.turn_critic
    if critic is None:
        if algorithm.values_answers:
            raise UserError(f"{where}.critic has no values of answers, which {stage.algorithm} needs: give turn_critic instead")
        return
    if plugins.registry().get("policies", config.policy.kind).acts:
        raise UserError(f"{key} values turns of a policy that writes, and {config.policy.kind} acts: use critic, or off-policy")
    if not algorithm.has_critic:
        raise UserError(f"{key} is given, but {stage.algorithm} uses no values: drop it, or use archer, ppo or digirl")
    if algorithm.values_answers and critic.rule != "returns":
        raise UserError(f'{key}.rule = "{critic.rule}" has no values of answers, which {stage.algorithm} needs: use "returns"')
    if stage.critic and not algorithm.values_answers:
        raise UserError(f"{where}.critic is another critic: drop one of them, or use archer, whose tokens it gives a baseline")
    if stage.critic and 0 < stage.critic.warmup_steps <= critic.warmup_steps:
        raise UserError(
            f"{where}.critic.warmup_steps = {stage.critic.warmup_steps} has no effect: a baseline learns with the policy, after "
            f"turn_critic.warmup_steps = {critic.warmup_steps}; set more, or drop it"
        )
    if critic.answers and not algorithm.values_answers:
        raise UserError(f"{key}.answers is of answers that nothing rewards, and {stage.algorithm} needs rewards: use archer")
    if "units_NT" in algorithm.needs and stage.credit != "turn":
        raise UserError(f'{key} has one value for a turn: set {where}.credit = "turn"')
    if critic.replay and getattr(algorithm.loss, "func", algorithm.loss) is not negative_log_likelihood:
        raise UserError(f"{key}.replay imitates old episodes, which {stage.algorithm} can't: use digirl, or drop replay")
    if critic.warmup_steps >= stage.steps:
        raise UserError(f"{key}.warmup_steps = {critic.warmup_steps} leaves the policy none of {stage.steps} steps: lower it")
    if config.compute.learners > 1 or config.compute.staleness:
        set_to = "compute.learners = 1" if config.compute.learners > 1 else "compute.staleness = 0"
        raise UserError(f"{key} learns in one process, from what the policy has just played: set {set_to}")

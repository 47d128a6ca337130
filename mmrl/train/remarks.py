"""Warnings about a valid run file."""

from __future__ import annotations

from collections.abc import Mapping

from mmrl.algorithms.covariance import clipped_covariance
from mmrl.algorithms.loss import negative_log_likelihood, policy_gradient
from mmrl.algorithms.presets import settings_of
from mmrl.api.interfaces import Task
from mmrl.config.sections import RlStage, limit_of
from mmrl.rollout.environments import has_environment
from mmrl.train.idle_keys import idle_keys
from mmrl.train.sampling.rules import plugin_rules
from mmrl.train.setup import Setup


def remarks(setup: Setup) -> list[str]:
    """Settings that are allowed but most likely not intended, one sentence each."""
    found = few_held_out(setup) + few_selected(setup) + few_drawn(setup) + idle_keys(setup.config)
    for number, (stage, algorithm) in enumerate(zip(setup.config.stages, setup.algorithms, strict=True)):
        if not isinstance(stage, RlStage) or algorithm is None:
            continue
        where = f"stages.{number}"
        found += beyond_limit(setup, number, stage)
        loss = getattr(algorithm.loss, "func", algorithm.loss)
        if loss in (policy_gradient, negative_log_likelihood):
            what = f"the loss of {stage.algorithm} has no probability ratio"
            if stage.epochs * stage.minibatches > 1:
                found.append(f"{where}: {what}, so from the second update on it treats old completions as on-policy")
            if stage.hints == "guide":
                found.append(f'{where}.hints = "guide": {what}, so hinted completions count as if sampled without a hint')
            if stage.noisy:
                found.append(f"{where}.noisy: {what}, so completions of noisy images count as if sampled from the clean ones")
        if loss is clipped_covariance and (own := settings_of(algorithm.loss))["low"] >= own["high"]:
            found.append(f"{where}.settings.low isn't below settings.high: {stage.algorithm} leaves out no token")
        given = settings_of(algorithm.advantage)
        discount = "turn_gamma" if "turn_gamma" in given else "gamma"
        undiscounted = given.get(discount, 1.0) == 1.0
        if "bootstrap_N" in algorithm.needs and undiscounted and has_soft_time_limit(setup.tasks):
            found.append(
                f"{where}.settings.{discount} is 1: an episode that the time limit truncates is valued as if it went on, so "
                f"being slow costs nothing: set {discount} = 0.99 or less, or the task's time_limit_terminates = true"
            )
        if stage.critic and stage.critic.bootstrap == "always" and undiscounted:
            found.append(
                f'{where}.critic.bootstrap = "always" with settings.{discount} = 1: no value is ever that of an end, so values '
                f"can drift without bound: set {discount} = 0.99 or less"
            )
        if given.get("weight") == given.get("last_weight") == 0 and "told_logprobs_NT" in algorithm.needs:
            found.append(f"{where}.settings: with a weight of 0 from the first step to the last, {stage.algorithm} is grpo")
        if "turns_NT" in algorithm.needs:
            found += within_turns(setup, stage, where, given)
        in_loss = stage.kl_coef and stage.kl_in == "loss"
        if in_loss and stage.kl_estimator == "k1" and not stage.kl_bias_correction:
            found.append(f'{where}.kl_estimator = "k1" has no gradient on average in the loss: use k2 or k3, or kl_in = "reward"')
        if in_loss and stage.kl_estimator == "k2" and stage.kl_bias_correction:
            found.append(f'{where}.kl_bias_correction makes the gradient of kl_estimator = "k2" wrong: use k3, or leave it out')
        if stage.kl_bias_correction and not in_loss:
            found.append(
                f"{where}.kl_bias_correction has no effect without a KL penalty in the loss: set kl_coef, or leave it out"
            )
        if stage.kl_coef and stage.kl_in == "reward" and not {"rewards_N", "rewards_NT"} & set(algorithm.needs):
            found.append(f'{where}.kl_in = "reward": {stage.algorithm} uses only the verifiers\' scores: set kl_in = "loss"')
    return found


def beyond_limit(setup: Setup, number: int, stage: RlStage) -> list[str]:
    """Warnings about rules that let answers go on beyond their task's limit. A smoke run lowers it itself. number: the stage's
    index."""
    found, limits = list[str](), [limit_of(setup.config, number, setup.entries[label]) for label in setup.config.weights(stage)]
    for place, rule in enumerate(plugin_rules(stage)):
        low = [f"{key} = {limit}" for limit, key in limits if limit < rule.longest_continued]
        if low and not setup.config.smoke:
            found.append(
                f"stages.{number}.rules.{place}: answers may go on to {rule.longest_continued} tokens, but "
                f"penalties of length count with {low[0]}: raise that, or lower what the rule's options allow"
            )
    return found


def within_turns(setup: Setup, stage: RlStage, where: str, given: Mapping[str, float]) -> list[str]:
    """Warnings about settings with which credit from turn to turn is that from token to token. given: settings of the
    advantage."""
    tasks = [setup.tasks[label] for label in setup.config.weights(stage)]
    if not any(task.simulation is not None or has_environment(task) for task in tasks):
        return [f"{where}: an answer of these tasks is one turn, so that {stage.algorithm} is ppo and turn_gamma has no effect"]
    if given["gamma"] == given["turn_gamma"] == given["lam"] == 1:
        return [f"{where}.settings: with gamma, turn_gamma and lam all 1, {stage.algorithm} is ppo: set turn_gamma = 0.95"]
    return []


def few_held_out(setup: Setup) -> list[str]:
    """Warnings about tasks with fewer held-out prompts than the run file asks for. A smoke run asks for fewer itself."""
    evaluate = setup.config.evaluate
    wanted, split, found = evaluate.num_prompts, evaluate.split, []
    asked = "num_prompts" in evaluate.model_fields_set and not setup.config.smoke
    for label in setup.tasks if asked else ():
        if wanted and (there := len(setup.splits(label, split))) < wanted:
            found.append(
                f"evaluate.num_prompts = {wanted}, but task {label!r} has {there} prompts in split {split!r}: all of "
                "them are used"
            )
    return found


def few_selected(setup: Setup) -> list[str]:
    """Warnings about tasks of which a stage's `select` leaves fewer prompts than it asks for."""
    found = []
    for (number, label), numbers in setup.chosen.items():
        rule = setup.config.stages[number].select
        if rule and rule.max_prompts is not None and (left := len(numbers)) < rule.max_prompts:
            found.append(
                f"stages.{number}.select.max_prompts = {rule.max_prompts}, but only {left} prompts of task {label!r} are "
                "left: all of them are used"
            )
    return found


def few_drawn(setup: Setup) -> list[str]:
    """Warnings about tasks with fewer prompts than a step draws of them."""
    found = []
    for number, stage in enumerate(setup.config.stages):
        asked, weights = getattr(stage, "prompts_per_step", 0), setup.config.weights(stage)
        for label, weight in weights.items() if asked else ():
            share, there = asked * weight / sum(weights.values()), len(setup.prompts(number, label))
            if share > there:
                about = f", about {share:.0f} of them of task {label!r}, which" if len(weights) > 1 else f", but task {label!r}"
                found.append(
                    f"stages.{number}.prompts_per_step = {asked}{about} has {there} prompts in split {stage.split!r}: some are "
                    "taken more than once in a step"
                )
    return found


def has_soft_time_limit(tasks: Mapping[str, Task]) -> bool:
    """Whether a task acts under a time limit that truncates episodes without terminating them."""
    return any(task.simulation is not None and not task.simulation.time_limit_terminates for task in tasks.values())

"""What is refused before anything is loaded, and what is said although it is allowed."""

from __future__ import annotations

from collections.abc import Mapping

from mmrl.algorithms.loss import negative_log_likelihood, policy_gradient
from mmrl.algorithms.presets import check_bounds, load_algorithm
from mmrl.api.errors import UserError, suggest
from mmrl.api.interfaces import Task
from mmrl.compute.devices import device_of, present
from mmrl.config.sections import EXPERT, DistillStage, RlStage, RunConfig
from mmrl.data.prompts import Indexable, easy_first, prompt_at, prompts_of
from mmrl.data.selection import prompts_for, taken
from mmrl.judge.rewards import metric_of, task_weights, verifier_ids
from mmrl.registry import plugins
from mmrl.train.checks.compute import check_compute
from mmrl.train.checks.parts import check_parts
from mmrl.train.trackers import check_trackers


def check_config(config: RunConfig) -> dict[str, Task]:
    """The tasks of a run file, by label. Raises UserError for whatever is wrong with ids, options, splits and settings."""
    registry = plugins.registry()
    device_of(config)
    acts = registry.get("policies", config.policy.kind).acts
    tasks = {entry.label: registry.make_task(entry.id, entry.options) for entry in config.tasks}
    check_acting(config, tasks, acts)
    check_compute(config, acts)
    check_verifiers(config, tasks)
    weights = task_weights(config)
    for number, stage in enumerate(config.stages):
        if isinstance(stage, RlStage):
            check_stage(config, number, stage)
        for name in config.weights(stage):
            simulation = tasks[name].simulation
            paid = simulation is not None and simulation.reward != "none"
            if isinstance(stage, RlStage) and stage.labels == "task" and not paid and not any(map(any, weights[name].values())):
                raise UserError(f"tasks {name!r}: its verifiers all weigh 0, so nothing is rewarded: give one a weight")
            items = prompts_for(stage, name, tasks[name], config.seed)
            check_variant(name, tasks[name], items)
            if stage.order == "easy-first":
                easy_first(items, name)
    if config.evaluate.n:
        for name, task in tasks.items():
            check_variant(name, task, prompts_of(name, task, config.evaluate.split, config.seed))
    check_trackers(config)
    return tasks


def check_verifiers(config: RunConfig, tasks: Mapping[str, Task]) -> None:
    """Refuse options that no verifier of this run has."""
    registry, wanted = plugins.registry(), verifier_ids(config)
    used = {registry.get("verifiers", name).id for name in wanted}
    for name in config.verifiers:
        if registry.get("verifiers", name).id not in used:
            raise UserError(f"verifiers.{name} has options and no task here uses it: these are used: {', '.join(sorted(used))}")
    cameras: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in wanted}
    for label, weights in task_weights(config).items():
        simulation = tasks[label].simulation
        if simulation is not None and simulation.simulator:
            seen = registry.get("simulators", simulation.simulator).cameras
            for name in (*weights, metric_of(config, label)):
                cameras[name][label] = seen
    for name, options in wanted.items():
        registry.check_verifier(name, options, cameras[name])


def check_acting(config: RunConfig, tasks: Mapping[str, Task], acts: bool) -> None:
    """Refuse tasks that don't go with the policy, or with each other, and keys that mean nothing to what acts."""
    acted = [label for label, task in tasks.items() if task.simulation is not None]
    spoken = [label for label in tasks if label not in acted]
    if acted and spoken:
        raise UserError(
            f"task {acted[0]!r} acts in a simulator and task {spoken[0]!r} is answered in words: train them in two runs"
        )
    if acted and not acts:
        raise UserError(
            f"task {acted[0]!r} acts in a simulator, and policy.kind = {config.policy.kind!r} writes: take vla or small"
        )
    if acts and not acted:
        raise UserError(f"policy.kind = {config.policy.kind!r} acts in simulators, and task {spoken[0]!r} is answered in words")
    if acted and config.evaluate.steer:
        raise UserError(f"evaluate.steer is for answers in words to videos, and task {acted[0]!r} acts: leave it out")
    for label in acted:
        simulation = tasks[label].simulation
        assert simulation is not None
        if simulation.simulator:
            plugins.registry().get("simulators", simulation.simulator)
        else:
            check_imitated(config, label)
    for number, stage in enumerate(config.stages):
        if isinstance(stage, DistillStage):
            check_distilled(config, number, stage, tasks if acts else {})
        if not isinstance(stage, RlStage):
            continue
        if stage.ratio != "token" and not acts:
            raise UserError(f'stages.{number}.ratio = "{stage.ratio}" is for policies that act: words are tokens; leave it out')
        odd = [
            key
            for key, off in (("hints", "none"), ("labels", "task"), ("ground_truth", "never"), ("length", None))
            if getattr(stage, key) != off
        ]
        if acts and (odd or stage.overlong != "keep" or stage.overlong_buffer):
            raise UserError(
                f"stages.{number}.{odd[0] if odd else 'overlong'} is about words, and {acted[0]!r} acts: leave it out"
            )
    if acted and config.simulate.device != "auto":
        present("simulate.device", config.simulate.device)


def check_variant(label: str, task: Task, items: Indexable) -> None:
    """Refuse a variant of the world that the task's simulator hasn't: that of its first prompt, as the others have theirs."""
    if task.simulation is None or not task.simulation.simulator:
        return
    spec = plugins.registry().get("simulators", task.simulation.simulator)
    variant = prompt_at(items, 0, label).meta.get("variant")
    if variant is not None and variant not in spec.variants:
        known = f"it has {', '.join(spec.variants)}.{suggest(str(variant), spec.variants)}" if spec.variants else "it has none"
        raise UserError(f"task {label!r}: simulator {spec.id!r} has no variant {variant!r:.60}: {known}")


def check_imitated(config: RunConfig, label: str) -> None:
    """Refuse a stage or an evaluation that plays the episodes of a task without a simulator."""
    for number, stage in enumerate(config.stages):
        if stage.kind != "sft" and label in config.weights(stage):
            raise UserError(
                f'stages.{number}: task {label!r} has demonstrations and no simulator, so kind = "{stage.kind}" can\'t play it: '
                "give it one, in its option simulator, or leave it out of the stage"
            )
    if config.evaluate.n:
        raise UserError(
            f"task {label!r} has demonstrations and no simulator that a policy could be evaluated in: give it one, in its option "
            "simulator, or set evaluate.n = 0"
        )


def check_distilled(config: RunConfig, number: int, stage: DistillStage, acted: Mapping[str, Task]) -> None:
    """Refuse a teacher that can't teach. acted: the tasks that act; none for a policy that writes."""
    where, expert = f"stages.{number}", stage.teacher == EXPERT
    if expert and not acted:
        raise UserError(f'{where}.teacher = "expert" is a simulator\'s, and these tasks are answered in words: name a model')
    if acted and stage.divergence != ("hard" if expert else "sampled"):
        wanted = '"hard": its actions are imitated' if expert else '"sampled": the others are for words'
        raise UserError(f'{where}.divergence = "{stage.divergence}": with this teacher a policy that acts takes {wanted}')
    for label in config.weights(stage) if expert else ():
        simulation = acted[label].simulation
        assert simulation is not None
        if "expert" not in plugins.registry().get("simulators", simulation.simulator).capabilities:
            raise UserError(f"{where}.teacher: simulator {simulation.simulator!r} of task {label!r} has no expert: name a model")
    if expert and config.policy.options.get("chunk", 1) != 1:
        raise UserError(f"{where}.teacher: an expert says one action at a time: set policy.options.chunk = 1")


def check_stage(config: RunConfig, number: int, stage: RlStage) -> None:
    """Refuse an rl stage whose algorithm can't do what its keys ask."""
    algorithm = load_algorithm(stage.algorithm, stage.settings, config.generate.max_tokens)
    where, extra = f"stages.{number}", 1 if stage.ground_truth == "always" else 0
    check_bounds(f"{where}.settings", stage.settings, plugins.registry().get("algorithms", stage.algorithm).bounds)
    if algorithm.compares:
        for entry in config.tasks:
            size = entry.group_size or stage.group_size
            if size + extra < 2 and entry.label in config.weights(stage):
                key = f"tasks {entry.label!r} group_size" if entry.group_size else f"{where}.group_size"
                raise UserError(f"{key} = {size}: {stage.algorithm} compares completions of the same prompt: sample at least 2")
    if stage.critic and not algorithm.has_critic:
        raise UserError(
            f"{where}.critic is given and {stage.algorithm} has no use for one: drop it, or take an algorithm like ppo"
        )
    if stage.critic and stage.critic.warmup_steps >= stage.steps:
        raise UserError(
            f"{where}.critic.warmup_steps = {stage.critic.warmup_steps} leaves the policy none of {stage.steps} steps: lower it"
        )
    if stage.labels != "task" and "baselines_N" in algorithm.needs:
        raise UserError(
            f'{where}.labels = "{stage.labels}": {stage.algorithm} compares with the reward of a greedy completion, '
            "which needs the task's answers: take another algorithm"
        )
    if stage.condition and algorithm.has_critic:
        raise UserError(f"{where}.condition imitates completions, and the critic of {stage.algorithm} is never trained: drop one")
    if stage.credit != "token" and "units_NT" not in algorithm.needs:
        raise UserError(
            f'{where}.credit = "{stage.credit}" is about a critic\'s values, and {stage.algorithm} has no critic: drop it'
        )
    for key in ("kl_target", "reference_every"):  # here, as the penalty may be the algorithm's
        if getattr(stage, key) and not stage.kl:
            raise UserError(f"{where}.{key} is set and kl = 0, so there is no penalty: set kl, or drop {key}")
    if "teacher_logprobs_NT" in algorithm.needs:
        raise UserError(f'{where}: {stage.algorithm} needs a teacher, which an rl stage hasn\'t: write kind = "distill"')
    if stage.reference == "adapter" and config.policy.lora is None:
        raise UserError(f'{where}.reference = "adapter" needs adapters: give [policy.lora], or set reference = "frozen"')
    if stage.reference_every and config.policy.lora is not None and stage.reference == "auto":
        raise UserError(
            f'{where}.reference_every: with adapters the reference is the model without them: set reference = "frozen"'
        )
    given = {v for weights in task_weights(config).values() for v in weights}
    if unknown := [v for v in stage.ground_truth_without if v not in given]:
        raise UserError(
            f"{where}.ground_truth_without names {unknown[0]!r}, which rewards nothing here: {', '.join(sorted(given))}"
        )
    for key, rule in (("temporal", stage.temporal), ("length", stage.length)):
        if rule and rule.verifier not in {"", *given}:
            raise UserError(
                f"{where}.{key}.verifier names {rule.verifier!r}, which rewards nothing here: {', '.join(sorted(given))}"
            )
    for entry in config.tasks if stage.labels == "co-reward" else ():
        task = plugins.registry().make_task(entry.id, entry.options)
        if type(task).rephrase is Task.rephrase and entry.label in config.weights(stage):
            raise UserError(f"{where}.labels: task {entry.label!r} has no rephrase(prompt) for co-reward: write one, or use ttrv")


def remarks(config: RunConfig, tasks: Mapping[str, Task] | None = None) -> list[str]:
    """What is allowed and most likely not meant. tasks: those of `check_config`; made here where they aren't at hand."""
    if tasks is None:
        tasks = {entry.label: plugins.registry().make_task(entry.id, entry.options) for entry in config.tasks}
    found = few_held_out(config, tasks) + few_selected(config)
    for number, stage in enumerate(config.stages):
        if not isinstance(stage, RlStage):
            continue
        algorithm, where = load_algorithm(stage.algorithm, stage.settings, config.generate.max_tokens), f"stages.{number}"
        loss = getattr(algorithm.loss, "func", algorithm.loss)
        if loss in (policy_gradient, negative_log_likelihood):
            what = f"the loss of {stage.algorithm} has no probability ratio"
            if stage.epochs * stage.minibatches > 1:
                found.append(f"{where}: {what}, so from the second update on it takes old completions for the policy's own")
            if stage.hints == "guide":
                found.append(f'{where}.hints = "guide": {what}, so hinted answers count as if they had been given without a hint')
        if "bootstrap_N" in algorithm.needs and stage.settings.get("gamma", 1.0) == 1.0 and undated(tasks):
            found.append(
                f"{where}.settings.gamma is 1: an episode that the time limit cuts off is valued as if it went on, so being slow "
                "costs nothing: set gamma = 0.99 or less, or the task's deadline = true"
            )
        if stage.kl and stage.kl_in == "loss" and stage.kl_estimate == "k1":
            found.append(f'{where}.kl_estimate = "k1" has no gradient on average in the loss: take k2 or k3, or kl_in = "reward"')
        if stage.kl and stage.kl_in == "reward" and not {"rewards_N", "rewards_NT"} & set(algorithm.needs):
            found.append(
                f'{where}.kl_in = "reward": {stage.algorithm} looks at the verifiers\' values alone: take kl_in = "loss"'
            )
    return found


def few_held_out(config: RunConfig, tasks: Mapping[str, Task]) -> list[str]:
    """Tasks with fewer held-out prompts than the run file itself asks for."""
    wanted, split, found = config.evaluate.n, config.evaluate.split, []
    for label, task in tasks.items() if "n" in config.evaluate.model_fields_set else ():
        if wanted and (there := len(prompts_of(label, task, split, config.seed))) < wanted:
            found.append(
                f"evaluate.n = {wanted}, and task {label!r} has {there} prompts in split {split!r}: all of them are asked"
            )
    return found


def few_selected(config: RunConfig) -> list[str]:
    """Tasks of which a stage's `select` leaves fewer prompts than it asks for."""
    found = []
    for number, stage in enumerate(config.stages):
        if (rule := stage.select) is None or rule.n is None:
            continue
        for label in config.weights(stage):
            if (left := len(taken(rule, label, stage.split, config.seed))) < rule.n:
                found.append(f"stages.{number}.select.n = {rule.n}, and {left} prompts of task {label!r} are left: all are taken")
    return found


def undated(tasks: Mapping[str, Task]) -> bool:
    """Some task acts under a time limit that only cuts episodes off."""
    return any(task.simulation is not None and not task.simulation.deadline for task in tasks.values())


def check_model(config: RunConfig) -> None:
    """Refuse a `[policy]` that can't be loaded, where its kind can tell without loading. A checkpoint doesn't need that model."""
    registry = plugins.registry()
    kind = registry.target(registry.get("policies", config.policy.kind))
    if getattr(kind, "trained_whole", False):
        for key, given in (("policy.lora", config.policy.lora), ("stages.parts", any(s.parts for s in config.stages))):
            if given:
                raise UserError(f"{key}: a policy of kind {config.policy.kind!r} is small and trained whole: leave it out")
    check, check_teacher = (getattr(kind, name, lambda *_: None) for name in ("check", "check_teacher"))
    check(config.policy)
    for number, stage in enumerate(config.stages):
        if isinstance(stage, DistillStage) and stage.teacher != EXPERT:
            try:
                check(config.policy.model_copy(update={"model": stage.teacher}))
                check_teacher(config.policy, stage.teacher)
            except UserError as error:
                raise of_teacher(error, number) from error
    critics = [i for i, s in enumerate(config.stages) if isinstance(s, RlStage) and s.critic]
    check_parts(config, critics, getattr(kind, "skeleton", None))


def of_teacher(error: UserError, number: int) -> UserError:
    """What a policy says of its model, said of a stage's teacher."""
    return UserError(error.what, key=f"stages.{number}.teacher")

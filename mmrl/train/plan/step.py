"""The numbers of a stage's step, of all learners together: what is sampled, what is trained on, and the passes over it. They come
from the stage's sampling rules and its algorithm, by which the step itself is run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mmrl.algorithms.presets import Algorithm, load_algorithm
from mmrl.algorithms.signals import measurements
from mmrl.api.sampling import Rounds
from mmrl.config.sections import DistillStage, PreferenceStage, RlStage, RunConfig, SftStage, Stage, stage_limit
from mmrl.train.sampling.numbers import step_load
from mmrl.train.sampling.rules import rules_of
from mmrl.train.update.measured import passes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Rounds are (prompts, completions of each)."""

    asked: int
    """Prompts that the run file asks for."""
    group: int
    """Completions of each."""
    longest: int
    """Tokens of the longest completion."""
    continued: int = 0
    """Those of the longest answer that a rule lets go on."""
    sampled: Rounds = ()
    perhaps: Rounds = ()
    """What is sampled besides if groups fail or are left out."""
    trained: Rounds = ()
    epochs: int = 1
    minibatches: int = 1
    looked_at: float = 0.0
    """Passes without gradients over what is trained on, besides the reference's in an update."""
    states: float = 0.0
    """Those without logits."""
    twins: int = 1
    """2 if each pass has gradients of a second one over the same tokens, with masked images."""
    reference: bool = False
    """Whether each pass needs the log-probabilities of a reference model."""
    shown: int = 0
    """Gold or other completions that are imitated beside."""
    shown_once: bool = False
    """Whether they have one optimiser step of their own, and not a part in each."""


def step_of(config: RunConfig, stage: Stage) -> Step:
    """Raises UserError or PluginError for an algorithm or a rule that can't be made."""
    entries = {entry.label: entry for entry in config.tasks}
    limit = stage_limit(config, stage)
    ruled = isinstance(stage, RlStage) and stage.rules  # which may sample prompts of tasks that nothing is drawn from
    taken = [entry for entry in config.tasks if entry.weight or ruled]
    longest = max((min(entry.max_tokens or limit, limit) for entry in taken), default=limit)
    if isinstance(stage, SftStage):
        return Step(asked=stage.batch_size, group=1, longest=longest, trained=((stage.batch_size, 1),), states=_balanced(stage))
    asked = stage.prompts_per_step
    if isinstance(stage, PreferenceStage):
        given = stage.pairs == "task"
        load = step_load(asked, 2 if given else stage.group_size, (), None if given else entries)
        return Step(
            asked=asked,
            group=load.size,
            longest=longest,
            sampled=() if given else load.sampled,
            trained=((asked, 2),),
            # `kto` looks with both models at the answers to other prompts, which are half as many
            looked_at=1.0 + ("kto" in stage.terms) + stage.on_policy_weights,
            reference=stage.compares,
        )
    rules = rules_of(stage) if isinstance(stage, RlStage) else ()
    load = step_load(asked, stage.group_size, rules, entries)
    own = Step(
        asked=asked,
        group=load.size,
        longest=longest,
        continued=max((rule.longest_continued for rule in rules), default=0),
        sampled=load.sampled,
        perhaps=load.perhaps,
        trained=load.trained,
    )
    if isinstance(stage, RlStage):
        return _reinforced(config, stage, own)
    return replace(own, looked_at=float(isinstance(stage, DistillStage)))


def _balanced(stage: RlStage | SftStage) -> float:
    """Passes in which the load of experts is counted before each optimiser step (`Routing.prepare`)."""
    epochs = stage.epochs if isinstance(stage, RlStage) else 1
    return float(epochs * bool(stage.experts and stage.experts.aux_loss_coef))


def _reinforced(config: RunConfig, stage: RlStage, step: Step) -> Step:
    """With what the algorithm and the sections of an `rl` stage add."""
    algorithm = load_algorithm(stage.algorithm, stage.settings, step.longest)
    groups = sum(n for n, _ in step.trained)
    sampled, shown = step.sampled, 0
    if "baselines_N" in algorithm.needs:
        sampled = (*sampled, (groups, 1))  # the greedy completion of each prompt
    if stage.entropy_control:
        again = (math.ceil(stage.entropy_control.prompts * groups), step.group)
        sampled, shown = (*sampled, again), math.prod(again)
    imitation = stage.imitation
    if imitation and imitation.rule in ("mixed", "relift"):
        shown = imitation.batch_size
    looked_at, states = _looks(stage, algorithm), _balanced(stage)
    both = stage.perception is not None and stage.perception.gradient == "both"
    if both and stage.minibatches > 1 and stage.experts and stage.experts.router_replay == "R2":
        states += 1  # `Routing._foresee`
    return replace(
        step,
        sampled=sampled,
        epochs=stage.epochs,
        minibatches=stage.minibatches,
        looked_at=looked_at,
        states=states,
        twins=2 if both else 1,
        reference=bool(stage.kl_coef),
        shown=shown,
        shown_once=bool(imitation and imitation.rule == "relift"),
    )


def _looks(stage: RlStage, algorithm: Algorithm) -> float:
    """Passes without gradients for what is measured before an update, and for what the loss asks for."""
    needs = (*algorithm.needs, "entropy_NT") if algorithm.entropy_share < 1 else algorithm.needs
    names = measurements(needs, bool(stage.kl_coef) and stage.kl_in == "reward")
    separate = stage.critic is not None and stage.critic.backbone == "separate"
    values = "values" in names and not stage.turn_critic
    own = not names.isdisjoint(("logprobs", "entropy")) or (values and not separate)
    apart = ("masked", "told", "shown", "slopes", "reference", "teacher")
    found = own + (values and separate) + sum(name in names for name in apart)
    found += stage.consistency is not None  # what the reference says of the answers
    rule = stage.perception
    if rule and rule.gradient == "seen" and rule.coef and "masked" not in names:
        found += 1
    return found + (stage.minibatches > 1) + passes_of(algorithm.loss_needs, stage.epochs, stage.minibatches)


def per_learner(rounds: Rounds, learners: int) -> Rounds:
    """The share of the learner that has most."""
    return tuple((-(-n // learners), size) for n, size in rounds)

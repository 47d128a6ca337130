"""The step of an `rl` stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mmrl.algorithms.entropy import adapted_bonus, bonus_counts
from mmrl.algorithms.kl import adapted
from mmrl.algorithms.loss import negative_log_likelihood
from mmrl.algorithms.signals import ENVIRONMENT, Signals
from mmrl.algorithms.states import met_again
from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError
from mmrl.api.seeds import derive
from mmrl.api.types import Rollout
from mmrl.config.sections import AdaptiveEntropyConfig, CriticConfig, RlStage
from mmrl.policies.batches import Batch, Credit
from mmrl.policies.critic import Critic
from mmrl.policies.reference import Reference
from mmrl.rollout.environments import has_environment
from mmrl.train.metrics import credit_share, rl_metrics
from mmrl.train.position import StepIndex
from mmrl.train.sampling.angles import measure_step, order_prompts
from mmrl.train.sampling.async_sampling import AsyncSampler
from mmrl.train.sampling.condition import relabel
from mmrl.train.sampling.consistency import CONSISTENCY, pay_consistency
from mmrl.train.sampling.groups import Sampled, outcomes
from mmrl.train.sampling.guard import credited
from mmrl.train.sampling.interventions import refuse_interventions
from mmrl.train.sampling.masked import masked_rollouts, with_masked, with_masked_logprobs
from mmrl.train.sampling.prompted import shown_rollouts, told_rollouts, unchanged
from mmrl.train.sampling.rule_states import RuleState, load_states, save_own_states, save_states
from mmrl.train.sampling.rules import rules_of
from mmrl.train.sampling.sampler import Sampler
from mmrl.train.sampling.smoke_gold import SmokeGold
from mmrl.train.sampling.smoke_spread import needs_spread, with_spread
from mmrl.train.stages.base import Steps
from mmrl.train.update.demonstrations import Demonstrations
from mmrl.train.update.learner import Learner
from mmrl.train.update.packer import Dealt, PackOptions

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


@dataclass(frozen=True, slots=True)
class MiniBatches:
    """The mini-batches of an update."""

    dealt: Dealt
    counts: dict[str, float] = field(default_factory=dict)
    """Metrics of their making."""


class RlSteps(Steps):
    """Sample completions, score them, compute their credit, and update the policy."""

    stage: RlStage

    def __init__(self, run: StageContext, stage: RlStage) -> None:
        config = run.config
        algorithm = run.setup.algorithms[run.at.stage]
        assert algorithm is not None
        self.stage, self.algorithm, self.rules = stage, algorithm, rules_of(stage)
        self.teacher = run.teacher(run.at.stage) if stage.teacher else None
        shown = config.smoke and needs_spread(algorithm)
        if shown:
            self.rules = with_spread(self.rules, stage, algorithm)
        super().__init__(run, stage, history="past_N4" in self.algorithm.needs)
        self.direct = Sampler(run, stage, self.source, self.rules, states="states_NT" in algorithm.needs)
        """Samples at once, even if `sampler` is asynchronous."""
        if shown:
            self.direct.add_gold = SmokeGold(run, stage)
        self.masked_NT: torch.Tensor | None = None
        """The step's log-probabilities with masked images, once they were measured."""
        self.rule_states: Sequence[RuleState] = ()
        """Those of `rules` after the last step."""
        self.sampler: Sampler | AsyncSampler = self.direct
        if config.compute.staleness:
            every = {"evaluate_every": config.evaluate.every, "save_every": config.checkpoint.every}
            compute = config.compute
            self.sampler = AsyncSampler(self.direct, compute.staleness, interrupt=compute.interrupt, steps=stage.steps, **every)

    def begin(self) -> None:
        run, stage, config = self.run, self.stage, self.config
        adapters = config.policy.lora is not None and stage.reference != "frozen"
        limit = config.limits.logprob_gap.stop
        imitates = replace(self.algorithm, loss=negative_log_likelihood)  # RECAP learns by supervision alone
        self.learner = Learner(
            run.policy,
            stage,
            imitates if stage.condition else self.algorithm,
            temperature=config.generate.temperature,
            reference=Reference(run.policy, adapters, stage.reference_decay) if stage.refers else None,
            critic=self.critic(stage.critic) if stage.critic else None,
            teacher=self.teacher,
            gap_limit=torch.inf if limit is None else limit,
            train=config.train,
            stale=config.compute.staleness > 0,
        )
        run.collector.critic = self.learner.critic

    def critic(self, config: CriticConfig) -> Critic:
        """The stage's critic. With `credit = "action"` it has a value for each action of a chunk."""
        chunk = self.run.policy.chunk if self.stage.credit == "action" else 1
        return Critic(self.run.policy, config, derive(self.config.seed, "critic", self.run.at.stage), chunk)

    def __call__(self, beside: Demonstrations | None = None) -> dict[str, float]:
        """beside: gold completions that the update also imitates."""
        at = self.run.at.moment
        order_prompts(self.run, self.source)
        prompts = self.source.upcoming(self.sampler.prompts)
        groups = self.sampler(prompts, at)
        credit = self.credit(groups, at)
        beside = beside or self.imitated(groups, credit)
        self.record(groups, credit)
        batches = self.batches(groups, credit, at)
        update = self.learn(batches, beside)
        return self.metrics(groups, credit, update)

    def imitated(self, sampled: Sampled, credit: Credit) -> Demonstrations | None:
        """Gold completions that the update also imitates because of what was sampled; may change the credit in place."""
        return None

    # -- credit -----------------------------------------------------------------------------------------------------------

    def credit(self, sampled: Sampled, at: StepIndex) -> Credit:
        """The credit of each rollout, or of each of its tokens. Raises UserError if too many scores failed."""
        self.run.report_failures(sampled.everything)
        refuse_interventions(sampled.rollouts, self.run.at.stage, "rl")
        self.foresee(sampled)
        rollouts, groups = sampled.rollouts, sampled.groups
        if sampled.idle or not any(r.length for r in rollouts):  # all episodes may be lost
            return Credit(advantages=torch.full((len(rollouts),), torch.nan))
        if self.stage.consistency:
            known = self.measure(rollouts, frozenset({"reference"}))["reference"]
            sampled.counts |= pay_consistency(groups, known, self.run.policy, self.stage.consistency)
        signals = Signals(
            rollouts,
            sampled.scores,
            self.stage,
            weights=[self.parts(r.prompt.task, sampled) for r in rollouts],
            kl=self.kl,
            measure=lambda names: {**self.measure(rollouts, names - {"shown"}), **self.shown(sampled, names)},
            greedy=lambda: self.greedy(sampled, at),
            past=lambda r: self.source.reward_history(groups[r.group].place),
            progress=self.progress(at),
        )
        credit = self.algorithm.credit(signals)
        if "states_NT" in self.algorithm.needs:
            sampled.counts["turns/met_again_share"] = met_again(signals.units_NT, signals.states_NT)
        for rule in self.rules:
            credited(rule, groups, credit.advantages)
        credit = self.algorithm.selected(credit, signals)
        if credit.advantages.ndim == 2:
            sampled.counts["credit/token_share"] = credit_share(credit.advantages, signals.mask_NT)
        return credit

    def foresee(self, sampled: Sampled) -> None:
        """What comes before the credit of a step's episodes."""

    def greedy(self, sampled: Sampled, at: StepIndex) -> torch.Tensor:
        """The reward of the greedy completion of each rollout's prompt, float32 [N]; NaN if its score failed."""
        tried = self.direct.greedy(sampled.groups, at, self.run.clock)
        self.run.report_failures(tried)
        both = [(r, s) for g in tried for r, s in zip(g.rollouts, g.scores, strict=True)]
        rewards = [torch.nan if s.value is None else s.value + r.environment_reward for r, s in both]
        return torch.tensor([rewards[r.group] for r in sampled.rollouts])

    def progress(self, at: StepIndex) -> float:
        """From 0 at the stage's first step to 1 at its last."""
        return at.stage_step / max(1, self.stage.steps - 1)

    def parts(self, task: str, sampled: Sampled) -> dict[str, float]:
        """Reward part -> weight: the verifiers or the label-free reward, what is paid for lengths and, in a smoke run, for
        spread, and what an environment pays."""
        own = dict(sampled.weights[task]) if self.stage.labels == "task" else {self.stage.labels: 1.0}
        played = self.run.tasks[task].simulation is not None or has_environment(self.run.tasks[task])
        paid = {"overlong": bool(self.stage.overlong_buffer), "length": bool(self.stage.length), "smoke": self.config.smoke}
        paid[CONSISTENCY] = bool(self.stage.consistency)
        return own | {name: 1.0 for name, on in (paid | {ENVIRONMENT: played}).items() if on}

    # -- the update -------------------------------------------------------------------------------------------------------

    def batches(self, sampled: Sampled, credit: Credit, at: StepIndex) -> MiniBatches:
        """The step's mini-batches."""
        rollouts, counts = sampled.rollouts, {}
        if condition := self.stage.condition:
            drops = derive(self.config.seed, "condition", at.step)
            rollouts, credit, share = relabel(sampled, credit, condition, self.run.collector, self.source, drops)
            counts["condition/positive_share"] = share
        options = PackOptions(
            keep_zero=self.learner.needs_every_rollout,
            minibatches=self.stage.minibatches,
            seed=derive(self.config.seed, "parts", at.step),
            ratio=self.ratio,
        )
        with self.run.clock("update"):
            dealt = self.run.packer.deal(rollouts, credit, options)
        if self.stage.perception:
            dealt = self.perceiving(dealt, rollouts, credit, options)
        return MiniBatches(dealt, counts)

    # -- with less of the images ------------------------------------------------------------------------------------------

    def perceiving(self, dealt: Dealt, rollouts: Sequence[Rollout], credit: Credit, options: PackOptions) -> Sequence[Batch]:
        """The step's mini-batches with what the policy that sees less of the images says of their tokens."""
        rule = self.stage.perception
        assert rule is not None and not callable(dealt)
        if rule.gradient == "both":
            with self.run.clock("update"):
                masked = self.run.packer.deal(self.masked(rollouts), credit, options)
            assert not callable(masked)
            return with_masked(dealt, masked)
        if self.masked_NT is None and rule.coef and not credit.advantages.isnan().all():  # the same on every rank
            self.measure(rollouts, frozenset({"masked"}))
        known, self.masked_NT = self.masked_NT, None  # the next step has its own
        return dealt if known is None else with_masked_logprobs(dealt, known)

    def masked(self, rollouts: Sequence[Rollout]) -> list[Conversation]:
        """The step's rollouts as answers to prompts whose images are masked."""
        assert self.stage.perception is not None
        seed = derive(self.config.seed, "masked", self.run.at.step)
        with self.run.clock("process"):
            return masked_rollouts(rollouts, self.run.collector, self.stage.perception, seed)

    def measure(self, rollouts: Sequence[Rollout], names: frozenset[str]) -> Mapping[str, torch.Tensor]:
        """See `mmrl.algorithms.signals.Measure`."""
        plain = names - {"masked", "told"}
        found = super().measure(rollouts, plain) if plain else {}
        if "told" in names:
            with self.run.clock("process"):
                told = told_rollouts(rollouts, self.run.collector, self.run.tasks)
            found = {**found, "told": self.after(rollouts, told)}
        if "masked" in names:
            self.masked_NT = super().measure(self.masked(rollouts), frozenset({"logprobs"}))["logprobs"]
            found = {**found, "masked": self.masked_NT}
        return found

    def shown(self, sampled: Sampled, names: frozenset[str]) -> Mapping[str, torch.Tensor]:
        """`shown` of `mmrl.algorithms.signals.Measure`, if it is among the names."""
        if "shown" not in names:
            return {}
        both, least = zip(sampled.rollouts, sampled.scores, strict=True), self.stage.success_threshold
        solved = [s.value is not None and s.value + r.environment_reward >= least for r, s in both]
        with self.run.clock("process"):
            shown = shown_rollouts(sampled.rollouts, self.run.collector, solved)
        return {"shown": self.after(sampled.rollouts, shown)}

    def after(self, rollouts: Sequence[Rollout], changed: Sequence[Rollout]) -> torch.Tensor:
        """float [N, T]: the log-probabilities of the rollouts' tokens after changed prompts, NaN where a prompt stayed."""
        found_NT = super().measure(changed, frozenset({"logprobs"}))["logprobs"]
        return found_NT.masked_fill(unchanged(rollouts, changed, found_NT.device)[:, None], torch.nan)

    def learn(self, batches: MiniBatches, beside: Demonstrations | None) -> dict[str, float]:
        """Update the policy, the coefficients and the reference model; return the metrics."""
        stage, memory = self.stage, self.run.at.memory
        self.learner.penalties.entropy_coef = self.entropy_coef
        metrics = self.update(batches.dealt, kl=self.kl, demonstrations=beside) | batches.counts
        if stage.kl_coef:
            metrics |= {"kl_coef": self.kl}
        if stage.kl_target and "kl" in metrics:
            memory["kl"] = adapted(self.kl, metrics["kl"], stage.kl_target, stage.kl_horizon)
        if stage.adaptive_entropy:
            self.adapt_entropy(stage.adaptive_entropy, metrics)
        self.move_reference()
        return metrics

    def adapt_entropy(self, rule: AdaptiveEntropyConfig, metrics: dict[str, float]) -> None:
        """Adapt the weight of the entropy bonus, and put the one of this step among the metrics."""
        memory = self.run.at.memory
        metrics["entropy_coef"] = self.entropy_coef
        if "entropy" in metrics:
            weight = memory.get("entropy_coef", self.stage.entropy_coef)
            bounds = {"delta": rule.delta, "least": rule.least, "most": rule.most}
            memory["entropy_coef"] = adapted_bonus(weight, metrics["entropy"], target=rule.target, **bounds)
            memory["entropy"] = metrics["entropy"]

    def sleep(self) -> None:
        self.sampler.sleep()

    @property
    def kl(self) -> float:
        """The current coefficient of the KL penalty."""
        return self.run.at.memory.get("kl", self.stage.kl_coef)

    @property
    def entropy_coef(self) -> float:
        """The current weight of the entropy bonus, 0 while `adaptive_entropy` has it off."""
        rule, memory = self.stage.adaptive_entropy, self.run.at.memory
        if rule and not bonus_counts(memory.get("entropy"), rule.target):
            return 0.0
        return memory.get("entropy_coef", self.stage.entropy_coef)

    # -- results ----------------------------------------------------------------------------------------------------------

    def metrics(self, sampled: Sampled, credit: Credit, update: dict[str, float]) -> dict[str, float]:
        """Metrics of the step; also passes the outcomes of the groups to the source of prompts."""
        self.run.clock.add(sampled.seconds)
        filter = self.stage.epoch_filter
        self.source.tell(outcomes(sampled.sampled, self.stage.success_threshold, filter.verifier if filter else ""))
        measure_step(self.run, self.source, [g.place for g in sampled.sampled])
        self.direct.weights.record(sampled.everything)
        own = [n for n, r in enumerate(sampled.rollouts) if not r.is_demonstration]
        rollouts, scores = [sampled.rollouts[n] for n in own], [sampled.scores[n] for n in own]
        metrics = rl_metrics(rollouts, scores, credit.advantages[own])
        if taken := sorted(sampled.counts.keys() & (metrics.keys() | update.keys())):
            raise PluginError(f"counts() of a sampling rule gives {taken[0]!r}, which is a metric of mmrl: choose another name")
        return metrics | sampled.counts | update

    def state(self) -> dict[str, Any]:
        return self.sampler.state()

    def step_ended(self) -> None:
        self.rule_states = self.sampler.rule_states()

    def save_beside(self, folder: Path) -> None:
        save_states(self.rule_states, folder)

    def save_own(self, folder: Path) -> None:
        save_own_states(self.rule_states, folder)

    def load_beside(self, folder: Path) -> None:
        load_states(self.rules, folder)
        self.step_ended()

    def close(self) -> None:
        self.sampler.close()


STEPS = RlSteps

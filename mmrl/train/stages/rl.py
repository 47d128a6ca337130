"""The step of an `rl` stage, readable top to bottom."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from mmrl.algorithms.kl import adapted
from mmrl.algorithms.loss import negative_log_likelihood
from mmrl.algorithms.signals import Signals
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Rollout, Score
from mmrl.compute import ranks
from mmrl.config.sections import CriticConfig, RlStage
from mmrl.data.prompts import Outcome
from mmrl.policies.batches import Credit, ones
from mmrl.policies.critic import Critic
from mmrl.policies.reference import Reference
from mmrl.run_folder.metrics import REDUCTIONS
from mmrl.run_folder.rollouts import as_seen, drawn, kept_of, marked, rollout_row
from mmrl.train.metrics import rl_metrics
from mmrl.train.sampling.condition import relabelled, shown_as
from mmrl.train.sampling.gather import Gatherer
from mmrl.train.sampling.groups import Gathered, outcomes
from mmrl.train.stages.ahead import Ahead, Moment, lag
from mmrl.train.stages.base import Steps
from mmrl.train.update.learner import Demonstrations, Learner
from mmrl.train.update.packer import Dealt

if TYPE_CHECKING:
    from mmrl.train.stages.context import Context


class RlSteps(Steps):
    """Sample, score, reinforce."""

    stage: RlStage

    def __init__(self, run: Context, stage: RlStage) -> None:
        config = run.config
        self.stage = stage
        algorithm = run.setup.algorithms[run.at.stage]
        assert algorithm is not None
        self.algorithm = algorithm
        super().__init__(run, stage, history="past_N4" in self.algorithm.needs)
        self.gatherer = Gatherer(
            stage,
            run.tasks,
            run.collector,
            run.judge,
            take=self.take,
            encode=lambda prompt: run.collector.encode([prompt])[0],
            sampling=self.sampling,
            weights=self.weights,
            group_size=lambda task: run.setup.entries[task].group_size or stage.group_size,
            version=lambda: self.moment.version,
            wake=lambda: None if self.ahead else run.collector.wake(),
        )
        self.ahead: Ahead[Gathered] | None = None
        if depth := config.compute.staleness:
            self.ahead = Ahead(self.sampled, self.refresh, self.source.state, depth)
        self.asked: Moment | None = None
        """What the thread samples for."""
        self.drawn: dict[str, Any] = {}
        """The source's state before anything was drawn for later steps."""
        self.unlearned: list[Outcome] = []
        """What the source is told of when nobody draws from it."""

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
            reference=Reference(run.policy, adapters) if stage.kl else None,
            critic=self.critic(stage.critic) if stage.critic else None,
            gap_limit=torch.inf if limit is None else limit,
            checkpointed=config.train.checkpointing,
            stale=config.compute.staleness > 0,
        )
        run.collector.critic = self.learner.critic

    def critic(self, config: CriticConfig) -> Critic:
        """With a value for each action of a chunk, if those are what is credited."""
        chunk = getattr(self.run.policy, "chunk", 1) if self.stage.credit == "action" else 1
        return Critic(self.run.policy, config, derive(self.config.seed, "critic", self.run.at.stage), chunk)

    def __call__(self) -> dict[str, float]:
        demonstrations = self.demonstrations()
        if demonstrations and demonstrations.weight == 1:
            return self.adapt(self.update([], demonstrations=demonstrations))
        gathered = self.gathered()
        self.run.report_failures([*gathered.sampled, *gathered.spent])
        credit = self.credit(gathered)
        self.keep(gathered, credit)
        update = self.update(self.batches(gathered, credit), kl=self.kl, demonstrations=demonstrations)
        self.unlearned += outcomes(gathered.sampled, self.stage.success)
        if not self.ahead:
            self.learned()
        own = [n for n, r in enumerate(gathered.rollouts) if not r.demonstrated]
        rollouts, scores = [gathered.rollouts[n] for n in own], [gathered.scores[n] for n in own]
        sampled = rl_metrics(rollouts, scores, credit.advantages[own])
        return sampled | gathered.counts | self.adapt(update)

    # -- sampling ---------------------------------------------------------------------------------------------------------

    def gathered(self) -> Gathered:
        """What this step learns from: sampled now, or while earlier steps were learned."""
        run = self.run
        if self.ahead is None:
            return self.sampled(self.moment, run.clock)
        with run.clock("wait"):
            ready = self.ahead(run.at.step, run.at.stage_step, self.last_ahead)
        self.drawn = ready.source
        ready.found.counts |= {f"ahead/{part}": seconds for part, seconds in ready.seconds.items()}
        ready.found.counts |= lag(ready.found.rollouts, run.at.step, self.config.compute.staleness)
        return ready.found

    def sampled(self, moment: Moment, clock: Callable[[str], Any]) -> Gathered:
        """Sample and score for a step."""
        self.asked, self.clock = moment if self.ahead else None, clock
        gathered = self.gatherer(clock)
        gathered.counts |= self.source.figures() | ranks.figures(self.run.collector.figures(), REDUCTIONS)
        return gathered

    @property
    def moment(self) -> Moment:
        return self.asked or super().moment

    @property
    def last_ahead(self) -> int:
        """The last step that may be sampled for by now: an evaluation or a checkpoint finds nobody sampling."""
        at, evaluated, saved = self.run.at, self.config.evaluate.every, self.config.checkpoint.every
        left = [self.stage.steps - at.stage_step - 1]
        left += [-(at.stage_step + 1) % evaluated] if evaluated else []
        left += [-(at.step + 1) % saved] if saved else []
        return at.step + min(left)

    def refresh(self) -> None:
        """Nobody samples: the sampler takes the weights of now, and the source what came of its prompts."""
        self.learned()
        self.run.collector.wake()

    def state(self) -> dict[str, Any]:
        if self.ahead and self.ahead.jobs:  # a run that ends here draws again what was drawn for later steps
            return self.drawn
        self.learned()
        return super().state()

    def learned(self) -> None:
        if self.unlearned:
            self.source.learned(self.unlearned)
            self.unlearned = []

    def rest(self) -> None:
        if self.ahead is None:
            super().rest()

    def close(self) -> None:
        if self.ahead:
            self.ahead.close()

    # -- credit -----------------------------------------------------------------------------------------------------------

    def credit(self, gathered: Gathered) -> Credit:
        """What each rollout, or each of its tokens, deserves."""
        rollouts, scores = gathered.rollouts, gathered.scores
        if gathered.idle:
            return Credit(advantages=torch.full((len(rollouts),), torch.nan))
        signals = Signals(
            rollouts,
            scores,
            self.stage,
            weights=[self.parts(r.prompt.task) for r in rollouts],
            kl=self.kl,
            measure=lambda names: self.measure(rollouts, names),
            greedy=lambda: self.greedy(gathered),
            past=lambda r: self.source.past(gathered.groups[r.group].place),
        )
        credit = self.algorithm.credit(signals)
        credit.advantages[torch.tensor(gathered.neutral)] = 0.0
        if self.stage.overlong == "mask":
            cut_off = torch.tensor([r.status.is_truncated for r in rollouts])
            credit.advantages[cut_off] = torch.nan
        return credit

    def greedy(self, gathered: Gathered) -> torch.Tensor:
        """The reward of the greedy completion of each rollout's prompt, float32 [N]; NaN where its score failed."""
        tried = self.gatherer.greedy(gathered.groups, self.run.clock)
        self.run.report_failures(tried)
        rewards = [torch.nan if s.value is None else s.value for g in tried for s in g.scores]
        return torch.tensor([rewards[r.group] for r in gathered.rollouts])

    def weights(self, task: str, stage_step: int | None = None) -> dict[str, float]:
        """Verifier -> weight, at a step of the stage, by default that which is being sampled for."""
        share = (self.moment.stage_step if stage_step is None else stage_step) / max(1, self.stage.steps - 1)
        return {v: w[0] + (w[1] - w[0]) * share for v, w in self.run.setup.weights[task].items()}

    def parts(self, task: str) -> dict[str, float]:
        """Part of the reward -> weight: those of the verifiers, or the group's agreement, and what long completions pay."""
        own = self.weights(task, self.run.at.stage_step) if self.stage.labels == "task" else {self.stage.labels: 1.0}
        return own | ({"overlong": 1.0} if self.stage.overlong_buffer else {})

    # -- the update -------------------------------------------------------------------------------------------------------

    def batches(self, gathered: Gathered, credit: Credit) -> Dealt:
        """The step's mini-batches."""
        rollouts = gathered.rollouts
        if self.stage.condition:
            rollouts, credit, gathered.counts["condition/positive_share"] = relabelled(
                gathered,
                credit,
                self.stage.condition,
                lambda prompt: self.run.collector.encode([prompt])[0],
                lambda group: self.source[group.place],
                self.seed("condition"),
            )
        groups, keep, seed = [r.group for r in gathered.rollouts], self.learner.needs_every_rollout, self.seed("parts")
        with self.run.clock("update"):
            return self.run.packer.deal(rollouts, credit, self.stage, keep_zero=keep, seed=seed, groups=groups)

    @property
    def kl(self) -> float:
        """Today's weight of the KL penalty."""
        return self.run.at.memory.get("kl", self.stage.kl)

    def adapt(self, metrics: dict[str, float]) -> dict[str, float]:
        """Whatever a stage adapts to what it measured."""
        stage, memory = self.stage, self.run.at.memory
        if stage.kl:
            metrics |= {"kl_weight": self.kl}
        if stage.kl_target and "kl" in metrics:
            memory["kl"] = adapted(self.kl, metrics["kl"], stage.kl_target, stage.kl_horizon)
        if stage.imitation and stage.imitation.rule == "sasr" and "imitation/loss" in metrics:
            memory["sasr_last"] = metrics["grad_norm"]
            memory.setdefault("sasr_first", metrics["grad_norm"])
        if stage.reference_every and (self.run.at.stage_step + 1) % stage.reference_every == 0 and self.learner.reference:
            self.learner.reference.reset()
        return metrics

    def demonstrations(self) -> Demonstrations | None:
        """The gold completions of this step, if the stage mixes some in."""
        rule, memory = self.stage.imitation, self.run.at.memory
        if rule is None:
            return None
        if rule.rule == "mixed":
            weight = rule.start + (rule.end - rule.start) * min(self.run.at.stage_step / rule.steps, 1.0)
        else:
            first, last = memory.get("sasr_first"), memory.get("sasr_last")
            chance = 1.0 if first is None or last is None else last / max(last + rule.gamma * first, 1e-12)
            weight = float(random.Random(self.seed("sasr")).random() < chance)
        if not weight:
            return None
        rollouts = self.demonstrated(rule.batch_size)
        (batch,) = self.pack(rollouts, ones(rollouts))
        return Demonstrations(batch=batch, weight=weight, uncertain=rule.uncertain)

    def seed(self, use: str) -> int:
        return derive(self.config.seed, use, self.run.at.step)

    def shown(self, prompt: Prompt) -> Prompt:
        return shown_as(prompt, self.stage.condition.positive) if self.stage.condition else prompt

    # -- for people -------------------------------------------------------------------------------------------------------

    def keep(self, gathered: Gathered, credit: Credit) -> None:
        """Record some rollouts, see `kept_of`."""
        record, run = self.config.record, self.run
        every, step = record.rollouts_every, run.at.step + 1
        if every and (step == 1 or step % every == 0 or run.at.stage_step in (0, self.stage.steps - 1)):
            with run.clock("other"):
                kept = kept_of(gathered.rollouts, credit.taught, record.rollouts)
                advantages = credit.advantages if credit.advantages.ndim == 1 else credit.advantages.sum(1)
                rows = list(zip(gathered.rollouts, gathered.scores, advantages.tolist(), strict=True))
                own = [n for n in kept if not rows[n][0].elsewhere]
                made = ranks.gathered(lambda: {n: self._row(*rows[n]) for n in own}, as_seen)
                run.folder.rollouts(step, made)

    def _row(self, rollout: Rollout, score: Score, advantage: float) -> dict[str, Any]:
        """What is kept of a rollout, with what its task draws of it."""
        tasks = self.run.tasks
        return rollout_row(rollout, score, advantage, drawn(tasks, rollout), marked(tasks, rollout))

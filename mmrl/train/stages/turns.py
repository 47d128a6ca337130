"""The step of an `rl` stage with `[stages.turn_critic]`: critics learn from all turns so far, and then value the step's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmrl.algorithms.signals import Signals
from mmrl.algorithms.turns import furthest_above, token_baseline
from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Rollout, Score
from mmrl.config.sections import RlStage, TurnCriticConfig
from mmrl.policies.batches import Credit, ones
from mmrl.policies.turn_states import TurnEyes, TurnStates
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.position import StepIndex
from mmrl.train.sampling.groups import Sampled
from mmrl.train.stages.rl import MiniBatches, RlSteps
from mmrl.train.update.conversations import Conversations, remembered
from mmrl.train.update.demonstrations import Demonstrations
from mmrl.train.update.packer import PackOptions
from mmrl.train.update.turn_critics import KINDS, SuccessCritics, TurnCritics

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

CONVERSATIONS = "conversations.safetensors"
"""The file of the episodes that are replayed, in a checkpoint."""


class TurnCriticSteps(RlSteps):
    """The values of the algorithm's signals are those of critics of turns."""

    def __init__(self, run: StageContext, stage: RlStage) -> None:
        super().__init__(run, stage)
        assert stage.turn_critic is not None and isinstance(run.policy, VLM)
        self.how: TurnCriticConfig = stage.turn_critic
        self.policy = run.policy
        self.states: dict[int, TurnStates] = {}
        """id() of a rollout of this step -> its states."""
        self.learned: dict[str, float] = {}
        """Metrics of the critics."""

    def begin(self) -> None:
        super().begin()
        seed = derive(self.config.seed, "turn critic", self.run.at.stage)
        self.conversations = Conversations(self.how.capacity) if self.how.replay or self.how.answers else None
        self.anew: list[Conversation] = []
        """The policy's answers of this step to what is remembered."""
        self.critics: TurnCritics = KINDS[self.how.rule](TurnEyes(self.policy), self.stage, seed, self.policy.device)

    @property
    def warming(self) -> bool:
        """Whether the critics still learn alone."""
        return self.run.at.stage_step < self.how.warmup_steps

    # -- the critics ------------------------------------------------------------------------------------------------------

    def foresee(self, sampled: Sampled) -> None:
        self.run.consistent = False  # until the step is counted: the memory and the critics change, and then the weights
        if (every := self.stage.optimizer_every) and self.run.at.stage_step and self.run.at.stage_step % every == 0:
            self.learner.optimizer.forget()
            self.critics.optimizer.forget()
        self.remember(sampled.rollouts, sampled.scores)

    def remember(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
        """Add the step's episodes to the memory, and let the critics learn from it."""
        self.states = self.see(rollouts)
        paid = self.paid(rollouts, scores)
        before = self.critics.memory.added
        with self.run.clock("update"):
            self.learned = self.foreseen(rollouts, paid)
            for rollout, rewards_T in zip(rollouts, paid, strict=True):
                if rewards_T is not None:
                    self.keep(rollout, rewards_T)
        self.anew = self.answered() if self.how.answers and len(self.critics.memory) else []
        newest, anew = self.critics.memory.added - before, [self.states[id(rollout)] for rollout in self.anew]
        with self.run.clock("update"):
            if newest or anew:
                try:
                    self.learned |= self.critics.learn(newest, self.run.at.stage_step, anew)
                except UserError as error:
                    raise error.at(f"step {self.run.at.step + 1}") from error.__cause__

    def keep(self, rollout: Rollout, rewards_T: torch.Tensor) -> None:
        """Add an episode to the memory."""
        states = self.states[id(rollout)]
        self.critics.add(states, rewards_T, not rollout.status.is_cut_off)
        if self.conversations is not None:
            assert isinstance(rollout, Conversation)
            self.conversations.add(remembered(rollout, states, rewards_T))

    def see(self, rollouts: Sequence[Rollout]) -> dict[int, TurnStates]:
        """The states of these rollouts, by id()."""
        own = [r for r in rollouts if isinstance(r, Conversation)]
        (batch,) = self.pack(own, ones(own), keep_zero=True)
        with self.run.clock("update"):
            self.sleep()
            found = self.critics.eyes.of(own, batch)
        return {id(own[n]): states for n, states in found.items()}

    def answered(self) -> list[Conversation]:
        """The policy's new answers to observations that are drawn from the memory."""
        assert self.conversations is not None
        at, collector = self.run.at.moment, self.run.collector
        draw = random.Random(derive(self.critics.seed, "answers", at.step))
        every = [(episode, number) for episode in self.conversations.kept for number in range(len(episode))]
        drawn = draw.choices(every, k=self.how.answers)
        found: dict[int, Conversation] = {}
        collector.wake_up()
        with self.run.clock("generate"):
            for label in dict.fromkeys(episode.rollout.prompt.task for episode, _ in drawn):
                chosen = [n for n, (episode, _) in enumerate(drawn) if episode.rollout.prompt.task == label]
                how = self.run.sampling(label, derive(self.config.seed, "answers", at.step))
                nowhere = [Prompt(messages=[])] * len(chosen)  # of no task, so that no environment replies
                inputs = [drawn[n][0].observation(drawn[n][1]) for n in chosen]
                made = collector.collect(nowhere, inputs, 1, how, version=at.version, numbers=chosen)
                for n, rollout in zip(chosen, made, strict=True):
                    assert isinstance(rollout, Conversation)
                    found[n] = replace(rollout, prompt=drawn[n][0].rollout.prompt, group=n)
        rollouts = [found[n] for n in range(len(drawn)) if found[n].length]
        self.states |= self.see(rollouts)
        return rollouts

    def paid(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[torch.Tensor | None]:
        """The reward of each turn, float64 [T]; None for what is not remembered: failed scores, and demonstrations, which say
        nothing of what the policy's answers are worth but may be imitated."""
        turned = self.stage.model_copy(update={"credit": "turn", "kl_in": "loss"})
        signals = Signals(rollouts, scores, turned)
        found: list[torch.Tensor | None] = []
        for n, rollout in enumerate(rollouts):
            units_T, rewards_T = signals.units_NT[n], signals.rewards_NT[n]
            own = units_T >= 0
            mine = self.how.rule == "success" or not rollout.is_demonstration
            known = id(rollout) in self.states and mine and not bool(rewards_T.isnan().any())
            count = len(self.states[id(rollout)].said_TH) if known else 0
            sums_T = torch.zeros(count, dtype=torch.float64)
            found.append(sums_T.index_add(0, units_T[own], rewards_T[own]) if known else None)
        return found

    def foreseen(self, rollouts: Sequence[Rollout], paid: Sequence[torch.Tensor | None]) -> dict[str, float]:
        """How far the values are from the returns of episodes that the critics haven't learned from."""
        errors, values = [], []
        for rollout, rewards_T in zip(rollouts, paid, strict=True):
            if rewards_T is not None and not rollout.status.is_cut_off:
                values.append(self.critics.values(self.states[id(rollout)].seen_TH[:-1]))
                errors.append((values[-1] - self.critics.wanted(rewards_T)).abs())
        if not errors:
            return {}
        return {"value": torch.cat(values).mean().item(), "turn_critic/value_error": torch.cat(errors).mean().item()}

    # -- the policy -------------------------------------------------------------------------------------------------------

    def measure(self, rollouts: Sequence[Rollout], names: frozenset[str]) -> Mapping[str, torch.Tensor]:
        found = dict(super().measure(rollouts, rest)) if (rest := names - {"values", "answers"}) else {}
        shape = (len(rollouts), max(r.num_targets(self.ratio) for r in rollouts))
        if "answers" in names:
            found["answers"] = self._spread(rollouts, shape, self.critics.answers)
        if "values" in names:
            found["values"] = self._spread(rollouts, shape, lambda states: self.critics.values(states.seen_TH[:-1]))
            last = [self.states[id(r)].seen_TH[-1:] if id(r) in self.states else None for r in rollouts]
            found["bootstrap"] = torch.tensor([0.0 if s is None else float(self.critics.values(s)) for s in last])
        return found

    def _spread(
        self, rollouts: Sequence[Rollout], shape: tuple[int, int], values_of: Callable[[TurnStates], torch.Tensor]
    ) -> torch.Tensor:
        """[N, T]: the value of each token's turn."""
        found_NT = torch.zeros(shape)
        for n, rollout in enumerate(rollouts):
            if (states := self.states.get(id(rollout))) is not None:
                units_T = rollout.units(self.ratio, "turn")
                found_NT[n, : len(units_T)] = values_of(states)[units_T]
        return found_NT

    def batches(self, sampled: Sampled, credit: Credit, at: StepIndex) -> MiniBatches:
        if self.warming or not (self.anew or (self.how.replay and self.conversations and self.conversations.kept)):
            return super().batches(sampled, self.above_baseline(sampled.rollouts, credit), at)
        rollouts, counts = (self.anew, {"turn_critic/answered": float(len(self.anew))}) if self.anew else self.replayed(at)
        signals = Signals(rollouts, [Score(0.0)] * len(rollouts), self.stage, measure=lambda names: self.measure(rollouts, names))
        found = self.above_baseline(rollouts, self.algorithm.credit(signals))
        options = PackOptions(
            keep_zero=self.learner.needs_every_rollout,
            minibatches=self.stage.minibatches,
            seed=derive(self.config.seed, "parts", at.step),
        )
        if self.how.replay:
            counts["turn_critic/imitated_share"] = sum(_shares(rollouts, found.advantages)) / len(rollouts)
        with self.run.clock("update"):
            return MiniBatches(self.run.packer.deal(rollouts, found, options), counts)

    def above_baseline(self, rollouts: Sequence[Rollout], credit: Credit) -> Credit:
        """With a critic of tokens, the credit less what it foresaw of it, and its targets."""
        if self.learner.critic is None or self.warming:
            return credit
        values_NT = super().measure(rollouts, frozenset({"values"}))["values"].float().cpu()
        lengths_N = torch.tensor([rollout.num_targets(self.ratio) for rollout in rollouts])
        mask_NT = torch.arange(values_NT.shape[1]) < lengths_N[:, None]
        advantages_NT, targets_NT = token_baseline(credit.advantages, values_NT, mask_NT)
        return Credit(advantages=advantages_NT, values_NT=values_NT, returns_NT=targets_NT)

    def replayed(self, at: StepIndex) -> tuple[list[Conversation], dict[str, float]]:
        """(the episodes from which the policy learns in this step, metrics)."""
        assert isinstance(self.critics, SuccessCritics) and self.conversations is not None
        kept = list(self.conversations.kept)
        chances = self.critics.chances(torch.stack([episode.states.seen_TH[0] for episode in kept]))
        rewards = torch.tensor([episode.rollout.environment_reward for episode in kept])
        chosen = furthest_above(rewards, chances, share=self.how.top).nonzero()[:, 0].tolist()
        draw = random.Random(derive(self.critics.seed, "replay", at.step))
        drawn = draw.sample(chosen, min(self.how.replay, len(chosen)))
        again = [replace(kept[n].rollout, group=number) for number, n in enumerate(drawn)]
        self.states |= {id(rollout): kept[n].states for rollout, n in zip(again, drawn, strict=True)}
        return again, {"turn_critic/replayed": float(len(drawn))}

    def learn(self, batches: MiniBatches, beside: Demonstrations | None) -> dict[str, float]:
        if self.warming:
            return self.learned | batches.counts
        found = super().learn(batches, beside)
        if self.learner.critic is not None:
            names = {"value_loss": "baseline_loss", "value": "baseline", "grad_norm/critic": "baseline_grad_norm"}
            found |= {f"turn_critic/{name}": found[key] for key, name in names.items() if key in found}
        return found | self.learned

    # -- resume -----------------------------------------------------------------------------------------------------------

    def save_beside(self, folder: Path) -> None:
        super().save_beside(folder)
        self.critics.save(folder)
        if self.conversations is not None:
            self.conversations.save(folder / CONVERSATIONS)

    def load_beside(self, folder: Path) -> None:
        super().load_beside(folder)
        self.critics.load(folder)
        if self.conversations is not None:
            self.conversations.load(folder / CONVERSATIONS)


def _shares(rollouts: Sequence[Rollout], weights_NT: torch.Tensor) -> list[float]:
    """The share of each rollout's tokens that are imitated."""
    lengths = [rollout.num_targets("token") for rollout in rollouts]
    return [float((row[:length] != 0).float().mean()) for row, length in zip(weights_NT, lengths, strict=True)]


STEPS = TurnCriticSteps

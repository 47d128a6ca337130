"""The step of an `rl` stage that also imitates gold completions: in the same loss, in alternating steps, or where RL fails."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from mmrl.api.sampling import share_of
from mmrl.api.seeds import derive
from mmrl.api.types import Rollout
from mmrl.config.sections import ImitationConfig
from mmrl.data.prompts import PromptIndex
from mmrl.policies.batches import Credit, ones
from mmrl.train.sampling.groups import Sampled
from mmrl.train.stages.rl import MiniBatches, RlSteps
from mmrl.train.update.demonstrations import Demonstrations

WAITING = "relift/"
"""Beginning of the keys of a stage's memory that hold the prompts which wait for imitation: `relift/INDEX/TASK` -> when it
came."""


class ImitatingSteps(RlSteps):
    """`[stages.imitation]`: each step's loss mixes RL and imitation, or each step does one of the two, or each prompt."""

    def __call__(self, beside: Demonstrations | None = None) -> dict[str, float]:
        beside = self.demonstrations()
        if beside and beside.weight == 1:
            return self.learn(MiniBatches([]), beside)
        metrics = super().__call__(beside)
        if places := self.hardest():
            found = self.update([], demonstrations=self.pack_gold(self.demonstrations_of(places), 1.0))
            metrics |= {name: value for name, value in found.items() if name.startswith("imitation/")}
        return metrics

    @property
    def rule(self) -> ImitationConfig:
        assert self.stage.imitation is not None
        return self.stage.imitation

    def demonstrations(self) -> Demonstrations | None:
        """The gold completions of this step's next prompts; None if the step imitates none of them."""
        rule, memory, at = self.rule, self.run.at.memory, self.run.at
        if rule.rule == "mixed":
            weight = rule.start_weight + (rule.end_weight - rule.start_weight) * min(at.stage_step / rule.decay_steps, 1.0)
        elif rule.rule == "sasr":
            first, last = memory.get("sasr_first"), memory.get("sasr_last")
            chance = 1.0 if first is None or last is None else last / max(last + rule.gamma * first, 1e-12)
            weight = float(random.Random(derive(self.config.seed, "sasr", at.step)).random() < chance)
        else:
            return None
        return self.pack_gold(self.demonstrated(rule.batch_size), weight) if weight else None

    def imitated(self, sampled: Sampled, credit: Credit) -> Demonstrations | None:
        """`hpt`: the gold completions of prompts that succeed too rarely, which leave the rest of the update; each prompt counts
        the same. `relift`: note the prompts without a success."""
        success, memory = self.stage.success_threshold, self.run.at.memory
        if self.rule.rule == "relift":
            for place in [g.place for g in sampled.sampled if g.unaided and max(g.unaided) < success]:
                memory.setdefault(f"{WAITING}{place[1]}/{place[0]}", 1.0 + max(self.waiting().values(), default=0.0))
        if self.rule.rule != "hpt" or sampled.idle:
            return None
        shares = {n: share_of(g.unaided, success) for n, g in enumerate(sampled.groups) if g.unaided}
        failed = [n for n, share in shares.items() if share <= self.rule.up_to]
        if not failed:
            return None
        credit.advantages[torch.tensor([r.group in failed for r in sampled.rollouts])] = torch.nan
        gold = self.demonstrations_of([sampled.groups[n].place for n in failed])
        return self.pack_gold(gold, len(failed) / len(sampled.groups))

    def waiting(self) -> dict[str, float]:
        """Key of the stage's memory -> when its prompt came, for `relift`."""
        return {key: when for key, when in self.run.at.memory.items() if key.startswith(WAITING)}

    def hardest(self) -> list[PromptIndex]:
        """The prompts without a success that have waited longest, as soon as there are enough of them; they wait no longer."""
        waiting = self.waiting()
        if self.rule.rule != "relift" or len(waiting) < self.rule.batch_size:
            return []
        chosen = sorted(waiting, key=lambda key: waiting[key])[: self.rule.batch_size]
        parts = [key.removeprefix(WAITING).partition("/") for key in chosen]
        for key in chosen:
            del self.run.at.memory[key]
        return [(label, int(index)) for index, _, label in parts]

    def pack_gold(self, rollouts: Sequence[Rollout], weight: float) -> Demonstrations:
        (batch,) = self.pack(rollouts, ones(rollouts))
        return Demonstrations(batch=batch, weight=weight, uncertain=self.rule.uncertainty_weighting)

    def learn(self, batches: MiniBatches, beside: Demonstrations | None) -> dict[str, float]:
        metrics, memory = super().learn(batches, beside), self.run.at.memory
        if self.rule.rule == "sasr" and "imitation/loss" in metrics:
            memory["sasr_last"] = metrics["grad_norm"]
            memory.setdefault("sasr_first", metrics["grad_norm"])
        return metrics


STEPS = ImitatingSteps

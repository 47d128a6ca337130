"""The weights of verifiers in the rewards of a stage: those of the run file, and the factors of `[stages.reweight]`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.algorithms.reweighting import objective_weights
from mmrl.api.sampling import Group
from mmrl.api.types import verifier_value
from mmrl.config.sections import RlStage, Training
from mmrl.judge.rewards import weights_at
from mmrl.train.position import StepIndex

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

LOSS = "objective/"
"""Beginning of the keys of a stage's memory that hold losses: `objective/STEP/VERIFIER/TASK` with the slashes of both."""


class RewardWeights:
    """The weights of verifiers, by task."""

    def __init__(self, run: StageContext, stage: Training) -> None:
        self.run, self.stage = run, stage
        self.rule = stage.reweight if isinstance(stage, RlStage) else None
        labels = run.config.weights(stage) if self.rule else ()
        self.objectives = [(t, v) for t in labels for v, (first, last) in run.setup.weights[t].items() if first or last]
        """(task, verifier) of each reward that has a factor."""
        self.factors: dict[tuple[str, str], float] = {}

    def of(self, at: StepIndex) -> dict[str, dict[str, float]]:
        """Task -> verifier -> weight in a step, with the factors of the last `refresh`."""
        share = at.stage_step / max(1, self.stage.steps - 1)
        return {
            task: {v: w * self.factors.get((task, v), 1.0) for v, w in weights_at(weights, share).items()}
            for task, weights in self.run.setup.weights.items()
        }

    def refresh(self) -> None:
        """Compute the factors from the losses recorded so far. Must not run while completions are scored."""
        if self.rule:
            factors = objective_weights([self._losses(o) for o in self.objectives], self.rule.window, self.rule.temperature)
            self.factors = dict(zip(self.objectives, factors, strict=True))

    def metrics(self) -> dict[str, float]:
        return {f"task/{task}/weight/{verifier}": factor for (task, verifier), factor in self.factors.items()}

    def record(self, groups: Sequence[Group]) -> None:
        """Record the losses of a step: the highest value of each verifier minus its mean, as a share of its range."""
        for task, verifier in self.objectives:
            scores = [s for g in groups if g.prompt.task == task for s in g.scores]
            values = [v for s in scores if (v := verifier_value(s, verifier)) is not None]
            if values and self.rule:
                spec = self.run.setup.verifiers[verifier]
                loss = (spec.high - statistics.fmean(values)) / ((spec.high - spec.low) or 1.0)
                memory, kept = self.run.at.memory, self._keys((task, verifier))[-2 * self.rule.window + 1 :]
                for key in set(self._keys((task, verifier))) - set(kept):
                    del memory[key]
                memory[f"{LOSS}{self.run.at.stage_step}/{verifier}/{task}"] = max(0.0, loss)

    def _keys(self, objective: tuple[str, str]) -> list[str]:
        """The keys of an objective's losses in the stage's memory, the oldest first."""
        task, verifier = objective
        own = [k for k in self.run.at.memory if k.startswith(LOSS) and k.split("/", 2)[2] == f"{verifier}/{task}"]
        return sorted(own, key=lambda key: int(key.split("/", 2)[1]))

    def _losses(self, objective: tuple[str, str]) -> list[float]:
        return [self.run.at.memory[key] for key in self._keys(objective)]

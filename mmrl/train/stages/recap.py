"""The step of a `recap` stage: play as if all went well, remember, learn what each step is worth, and imitate all of it under
texts that say whether it was better than that."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import TrajectoryData
from mmrl.config.sections import RecapStage
from mmrl.policies.eyes import Eyes
from mmrl.train.stages.experience import ExperienceSteps
from mmrl.train.update.conditioned import Conditioned
from mmrl.train.update.experience import Lived
from mmrl.train.update.learner import Learner

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


class RecapSteps(ExperienceSteps):
    """RECAP, for every policy that acts."""

    stage: RecapStage
    learner: Conditioned  # type: ignore[assignment]  # it learns from experience, and not from batches of rollouts

    def __init__(self, run: StageContext, stage: RecapStage) -> None:
        super().__init__(run, stage)
        if stage.guidance != 1 and not self.policy.guides:
            raise UserError(
                f"stages.guidance = {stage.guidance:g}: the policy's head is neither of tokens nor a flow, and can't be guided: "
                "set it to 1"
            )

    def begin(self) -> None:
        stage, seed = self.stage, derive(self.config.seed, "recap", self.run.at.stage)
        imitator = Learner(self.policy, stage, train=self.config.train)
        self.learner = Conditioned(imitator, Eyes(self.policy, stage.state), stage, seed)

    def features_of(self, track: TrajectoryData) -> torch.Tensor:
        return self.learner.remembered_of(track)

    def remember(self, fresh: list[Lived]) -> dict[str, float]:
        """First the values judge the episodes, of which they haven't learned yet."""
        metrics = {"recap/calls": 0.0} | (self.learner.judged(fresh) if fresh else {})
        for episode in fresh:
            self.experience.add(episode)
        return metrics

    def renew(self) -> None:
        if self.stage.restart:
            self.learner.restart()
        else:
            super().renew()

    def learn(self) -> dict[str, float]:
        """Learn the values, label all calls, and imitate them."""
        learner, calls = self.learner, self.experience.calls()
        metrics = learner.learn_values(self.experience, self.run.at.stage_step)
        labels, counts = learner.labels(self.experience)
        told = lambda n, chance: self.told(calls[n][0].told(calls[n][1]), labels[n], chance)  # noqa: E731
        metrics |= counts | self.imitate(learner.imitator, calls, told, learner.seed, "imitate", learner.calls)
        learner.calls += 1
        return metrics | {"recap/calls": float(len(calls))}

    def told(self, instruction: str, positive: bool, chance: random.Random) -> str:
        """The text under which a call is imitated: with that of its label or, by chance, without."""
        condition = self.stage.condition
        text = "" if chance.random() < condition.drop else condition.positive if positive else condition.negative
        return f"{instruction} {text}".strip()


STEPS = RecapSteps

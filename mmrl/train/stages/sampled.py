"""The base class of the steps of plugins' stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mmrl.api.errors import PluginError
from mmrl.config.sections import PluginStage
from mmrl.policies.batches import Credit
from mmrl.train.metrics import rl_metrics
from mmrl.train.sampling.groups import Sampled, outcomes
from mmrl.train.sampling.sampler import Sampler
from mmrl.train.sampling.verified import Verified
from mmrl.train.stages.base import Steps
from mmrl.train.update.learner import Learner

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


class SampledSteps(Steps):
    """The steps of a plugin's stage. A subclass defines `__call__`, which runs a step and returns its metrics; its `__init__`
    takes the run, the stage and the stage's options.

    `sample` gives scored groups of completions, and `learn` trains on them; `demonstrated` gives gold completions.
    """

    stage: PluginStage

    def __init__(self, run: StageContext, stage: PluginStage) -> None:
        super().__init__(run, stage)
        self.stage = stage
        self.sampler = Sampler(run, stage, self.source, [Verified()])

    def begin(self) -> None:
        self.learner = Learner(self.run.policy, self.stage, temperature=self.config.generate.temperature, train=self.config.train)

    def sample(self) -> Sampled:
        """`group_size` scored completions of each of the next `prompts_per_step` prompts; with several learners, those of other
        ranks are stubs. Raises UserError if too many scores failed."""
        sampled = self.sampler(self.source.upcoming(self.sampler.prompts), self.run.at.moment)
        self.run.report_failures(sampled.everything)
        return sampled

    def learn(self, sampled: Sampled, advantages: Sequence[float]) -> dict[str, float]:
        """Maximise the sum of advantage times log-probability of the rollouts' tokens, divided by the number of their tokens.
        Records rollouts, and returns the metrics.

        advantages: one per rollout of `sampled.rollouts`; a rollout with 0 is not trained on. Raises PluginError for another
        number of them, or for one that is not finite.
        """
        rollouts = sampled.rollouts
        credit = Credit(advantages=torch.tensor([float(a) for a in advantages]))
        if len(credit.advantages) != len(rollouts) or not credit.advantages.isfinite().all():
            raise PluginError(
                f"stage {self.stage.kind!r} must give learn() a finite advantage for each of {len(rollouts)} rollouts, not "
                f"{credit.advantages.tolist()!r:.200}"
            )
        self.record(sampled, credit)
        update = self.update(self.pack(rollouts, credit))
        self.run.clock.add(sampled.seconds)
        self.source.tell(outcomes(sampled.sampled, 0.5))
        return rl_metrics(rollouts, sampled.scores, credit.advantages) | sampled.counts | update

    def state(self) -> dict[str, Any]:
        return self.sampler.state()

    def sleep(self) -> None:
        self.sampler.sleep()

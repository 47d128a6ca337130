"""The step of an `off-policy` stage: play, remember, and learn from what is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Score, Status
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.batches import Credit
from mmrl.policies.squashed import Squashed
from mmrl.train.metrics import rl_metrics
from mmrl.train.sampling.groups import Sampled, outcomes
from mmrl.train.sampling.offline import layout_of, offline_memory
from mmrl.train.sampling.sampler import Sampler
from mmrl.train.sampling.verified import Verified
from mmrl.train.stages.base import Steps
from mmrl.train.update.replay import Episode, Replay
from mmrl.train.update.rlpd import Rlpd

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

MEMORY = "memory.safetensors"
"""The memory's file in a checkpoint."""


class OffPolicySteps(Steps):
    """Play episodes, add them to the memory, and learn from it `updates` times for each of their steps."""

    stage: OffPolicyStage
    learner: Rlpd  # type: ignore[assignment]  # it learns from a memory, and not from batches of rollouts

    def __init__(self, run: StageContext, stage: OffPolicyStage) -> None:
        super().__init__(run, stage)
        assert isinstance(run.policy, Squashed)
        self.stage, self.policy = stage, run.policy
        self.sampler = Sampler(run, stage, self.source, [Verified()])
        self.offline = offline_memory(run, stage, run.policy)

    def begin(self) -> None:
        stage, seed = self.stage, derive(self.config.seed, "off-policy", self.run.at.stage)
        self.learner = Rlpd(self.policy.actor, self.policy.width, stage, seed)
        drawn = {"gamma": stage.gamma, "alpha": stage.priority, "beta": stage.priority_correction if stage.priority else 0.0}
        self.memory = Replay(layout_of(self.run, stage, self.policy), stage.capacity, **drawn)

    def __call__(self) -> dict[str, float]:
        sampled = self.sampler(self.source.upcoming(self.sampler.prompts), self.run.at.moment)
        self.run.report_failures(sampled.everything)
        self.run.consistent = False  # until the step is counted: the memory changes, and then the weights
        before = self.memory.added
        kept = self.remember(sampled)
        self.record(sampled, Credit(advantages=kept))
        update = self.learn(self.memory.added - before)
        self.run.clock.add(sampled.seconds)
        self.source.tell(outcomes(sampled.sampled, 0.5))
        return rl_metrics(sampled.rollouts, sampled.scores, kept) | sampled.counts | update

    def remember(self, sampled: Sampled) -> torch.Tensor:
        """Add the episodes to the memory. Returns float32 [N]: 1 for those that it took, NaN for those whose score failed."""
        kept_N = torch.full((len(sampled.rollouts),), torch.nan)
        with self.run.clock("process"):
            for n, (rollout, score) in enumerate(zip(sampled.rollouts, sampled.scores, strict=True)):
                assert isinstance(rollout, Trajectory)
                if rollout.data is not None and score.value is not None:
                    self.memory.add(self.episode(rollout, score))
                    kept_N[n] = 1.0
        return kept_N

    def episode(self, rollout: Trajectory, score: Score) -> Episode:
        """What the memory keeps of a played episode; what verifiers pay, they pay with its last step."""
        assert rollout.data is not None and score.value is not None
        features, actions_TA = self.policy.transitions(rollout.data)
        rewards_T = rollout.data.rewards_TK.sum(1).cpu().clone()
        rewards_T[-1] += score.value
        ended = rollout.status is Status.FINISHED
        return Episode(seen_TF=features[:-1], after_TF=features[1:], actions_TA=actions_TA, rewards_T=rewards_T, terminated=ended)

    def learn(self, count: int) -> dict[str, float]:
        """Learn for so many new steps of the simulators; return the mean of each metric."""
        run, summed = self.run, dict[str, float]()
        calls = count if self.memory.added > self.stage.starts_after else 0
        with run.clock("update"):
            self.sleep()
            if (every := self.stage.optimizer_every) and run.at.stage_step and run.at.stage_step % every == 0:
                self.learner.forget()
            try:
                for _ in range(calls):
                    for name, value in self.learner.update(self.memory, self.offline, run.at.stage_step).items():
                        summed[name] = summed.get(name, 0.0) + value
            except UserError as error:
                raise error.at(f"step {run.at.step + 1}") from error.__cause__
        remembered = {"off_policy/transitions": float(len(self.memory)), "off_policy/updates": float(calls * self.stage.updates)}
        return {name: value / calls for name, value in summed.items()} | remembered

    def sleep(self) -> None:
        self.sampler.sleep()

    # -- resume -----------------------------------------------------------------------------------------------------------

    def save_beside(self, folder: Path) -> None:
        self.memory.save(folder / MEMORY)

    def load_beside(self, folder: Path) -> None:
        self.memory.load(folder / MEMORY)


STEPS = OffPolicySteps

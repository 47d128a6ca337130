"""The base class of the steps of stages that play, remember episodes as they were seen, and imitate calls of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmrl.api.episodes import Trajectory, plain_instruction
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Status
from mmrl.config.sections import HgDaggerStage, RecapStage
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.batches import Batch, Credit, ones
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.train.metrics import rl_metrics
from mmrl.train.sampling.groups import Sampled, outcomes
from mmrl.train.sampling.interventions import expert_takes_over
from mmrl.train.sampling.offline import expert_episodes
from mmrl.train.sampling.sampler import Sampler
from mmrl.train.sampling.verified import Verified
from mmrl.train.stages.base import Steps
from mmrl.train.update.candidates import calls_to_imitate
from mmrl.train.update.experience import Experience, Lived, lived, shown
from mmrl.train.update.learner import Learner
from mmrl.train.update.packer import PackOptions

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

EXPERIENCE = "experience.safetensors"
"""The file of the remembered episodes, in a checkpoint."""
Told = Callable[[int, random.Random], str]
"""(index of a call, this update's chance) -> the text under which it is imitated."""


class ExperienceSteps(Steps):
    """Play episodes, in some of which another takes over, and learn from all that is remembered."""

    has_advantages = False
    stage: RecapStage | HgDaggerStage

    def __init__(self, run: StageContext, stage: RecapStage | HgDaggerStage) -> None:
        super().__init__(run, stage)
        assert isinstance(run.policy, ActingPolicy)
        self.stage, self.policy = stage, run.policy
        self.sampler = Sampler(run, stage, self.source, [Verified()])
        self.experience = Experience(stage.capacity)

    def __call__(self) -> dict[str, float]:
        if self.stage.expert_episodes and not self.experience.given:  # only now are the weights those of a resumed run
            self.experience.given = self.given()
        sampled = self.play()
        self.run.report_failures(sampled.everything)
        self.run.consistent = False  # until the step is counted: the experience changes, and then the weights
        fresh = [self.remembered(r) for r in sampled.rollouts if isinstance(r, Trajectory) and r.data is not None]
        metrics = self.remember(fresh)
        kept_N = torch.tensor([torch.nan if score.value is None else 1.0 for score in sampled.scores])
        self.record(sampled, Credit(advantages=kept_N))
        if len(self.experience):  # all episodes so far may be lost
            metrics |= self.learned()
        self.run.clock.add(sampled.seconds)
        self.source.tell(outcomes(sampled.sampled, 0.5))
        return rl_metrics(sampled.rollouts, sampled.scores, kept_N) | sampled.counts | metrics

    # -- what a subclass defines ------------------------------------------------------------------------------------------

    def remember(self, fresh: list[Lived]) -> dict[str, float]:
        """Add episodes that were played to the experience; return metrics."""
        raise NotImplementedError

    def learn(self) -> dict[str, float]:
        """Learn from the experience; return metrics."""
        raise NotImplementedError

    def features_of(self, track: TrajectoryData) -> torch.Tensor:
        """[T + 1, F]: what is kept of an episode besides what was seen; by default nothing."""
        return torch.zeros(len(track.choices) + 1, 0)

    def renew(self) -> None:
        """What is forgotten before a step learns."""
        if (every := self.stage.optimizer_every) and self.run.at.stage_step and self.run.at.stage_step % every == 0:
            self.learner.optimizer.forget()

    # -- experience -------------------------------------------------------------------------------------------------------

    def play(self) -> Sampled:
        """Episodes of the policy; in some the expert takes over."""
        with expert_takes_over(self.run.collector, self.stage.interventions):
            return self.sampler(self.source.upcoming(self.sampler.prompts), self.run.at.moment)

    def given(self) -> list[Lived]:
        """The expert's episodes."""
        found = []
        for rollout, track in expert_episodes(self.run, self.stage, self.policy, self.stage.expert_episodes):
            sees = self.features_of(track)
            label = rollout.prompt.task
            success, longest = rollout.status is Status.FINISHED, self.longest(label)
            found.append(lived(track, sees, task=label, longest=longest, success=success, expert=True))
        return found

    def remembered(self, rollout: Trajectory) -> Lived:
        """What is kept of a played episode, without its condition."""
        assert rollout.data is not None
        task = rollout.prompt.task
        track = rollout.data.retold(lambda text: plain_instruction(text, rollout.prompt))
        success, longest = rollout.outcome.get("success", 0.0) >= 1, self.longest(task)
        return lived(track, self.features_of(track), task=task, longest=longest, success=success)

    def longest(self, label: str) -> int:
        """Steps of the task's longest episode."""
        collector = self.run.collector
        assert isinstance(collector, SimulatorCollector)
        return collector.lanes(label)[0].rules.max_steps

    # -- learning ---------------------------------------------------------------------------------------------------------

    def learned(self) -> dict[str, float]:
        """`learn`, in the time of updates; an error says in which step it was met."""
        with self.run.clock("update"):
            self.sampler.sleep()
            self.renew()
            try:
                return self.learn()
            except UserError as error:
                raise error.at(f"step {self.run.at.step + 1}") from error.__cause__

    def imitate(
        self, imitator: Learner, calls: Sequence[tuple[Lived, int]], told: Told, seed: int, *names: int | str
    ) -> dict[str, float]:
        """`updates` steps of the policy on calls that are drawn with replacement; return the mean of each metric. seed, names: of
        this step's draws."""
        summed = dict[str, float]()
        for number in range(self.stage.updates):
            chance = random.Random(derive(seed, *names, number))
            drawn = chance.choices(range(len(calls)), k=self.stage.batch_size)
            texts = [told(n, chance) for n in drawn]
            found = imitator.update(self.batch([calls[n] for n in drawn], texts), self.run.at.stage_step)
            for name in ("loss", "grad_norm", "learning_rate"):
                summed[name] = summed.get(name, 0.0) + found[name] / self.stage.updates
        return summed

    def batch(self, calls: list[tuple[Lived, int]], told: list[str]) -> list[Batch]:
        """A batch of these calls, each under its text."""
        policy, seen = self.policy, shown(calls, told).on(self.policy.device)
        pairs = [episode.chunk(call, policy.ahead) for episode, call in calls]
        chunks_nCA = torch.stack([actions for actions, _ in pairs]).to(policy.device)
        valid_nK = torch.stack([valid[: policy.chunk] for _, valid in pairs]).to(policy.device)
        rollouts = calls_to_imitate(policy.choices_of(chunks_nCA, seen), seen, policy, valid_nK)
        return self.run.packer.pack(rollouts, ones(rollouts), PackOptions())

    def sleep(self) -> None:
        self.sampler.sleep()

    # -- resume -----------------------------------------------------------------------------------------------------------

    def save_beside(self, folder: Path) -> None:
        self.experience.save(folder / EXPERIENCE)

    def load_beside(self, folder: Path) -> None:
        self.experience.load(folder / EXPERIENCE)

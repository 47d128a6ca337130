"""The step of a `recap` stage: play as if all went well, remember, learn what each step is worth, and imitate all of it under
texts that say whether it was better than that."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmrl.api.episodes import Trajectory, plain_instruction
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Status
from mmrl.config.sections import RecapStage
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.batches import Batch, Credit, ones
from mmrl.policies.eyes import Eyes
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.train.metrics import rl_metrics
from mmrl.train.sampling.groups import Sampled, outcomes
from mmrl.train.sampling.offline import expert_episodes
from mmrl.train.sampling.sampler import Sampler
from mmrl.train.sampling.verified import Verified
from mmrl.train.stages.base import Steps
from mmrl.train.update.candidates import calls_to_imitate
from mmrl.train.update.conditioned import Conditioned
from mmrl.train.update.experience import Experience, Lived, lived, shown
from mmrl.train.update.learner import Learner
from mmrl.train.update.packer import PackOptions

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

EXPERIENCE = "experience.safetensors"
"""The file of all episodes, in a checkpoint."""


class RecapSteps(Steps):
    """RECAP, for every policy that acts."""

    has_advantages = False
    stage: RecapStage
    learner: Conditioned  # type: ignore[assignment]  # it learns from experience, and not from batches of rollouts

    def __init__(self, run: StageContext, stage: RecapStage) -> None:
        super().__init__(run, stage)
        assert isinstance(run.policy, ActingPolicy)
        self.stage, self.policy = stage, run.policy
        if stage.guidance != 1 and not run.policy.guides:
            raise UserError(
                f"stages.guidance = {stage.guidance:g}: the policy's head is neither of tokens nor a flow, and can't be guided: "
                "set it to 1"
            )
        self.sampler = Sampler(run, stage, self.source, [Verified()])
        self.experience = Experience(stage.capacity)

    def begin(self) -> None:
        stage, seed = self.stage, derive(self.config.seed, "recap", self.run.at.stage)
        imitator = Learner(self.policy, stage, train=self.config.train)
        self.learner = Conditioned(imitator, Eyes(self.policy, stage.state), stage, seed)

    def __call__(self) -> dict[str, float]:
        if self.stage.expert_episodes and not self.experience.given:  # only now are the eyes those of a resumed run
            self.experience.given = self.given()
        sampled = self.play()
        self.run.report_failures(sampled.everything)
        self.run.consistent = False  # until the step is counted: the experience changes, and then the weights
        fresh = [self.remembered(r) for r in sampled.rollouts if isinstance(r, Trajectory) and r.data is not None]
        metrics = {"recap/calls": 0.0} | (self.learner.judged(fresh) if fresh else {})
        for episode in fresh:
            self.experience.add(episode)
        kept_N = torch.tensor([torch.nan if score.value is None else 1.0 for score in sampled.scores])
        self.record(sampled, Credit(advantages=kept_N))
        if len(self.experience):  # all episodes so far may be lost
            metrics |= self.learn()
        self.run.clock.add(sampled.seconds)
        self.source.tell(outcomes(sampled.sampled, 0.5))
        return rl_metrics(sampled.rollouts, sampled.scores, kept_N) | sampled.counts | metrics

    # -- experience -------------------------------------------------------------------------------------------------------

    def play(self) -> Sampled:
        """Episodes under the positive condition; in some the expert takes over."""
        collector = self.run.collector
        collector.interventions = self.stage.interventions
        try:
            return self.sampler(self.source.upcoming(self.sampler.prompts), self.run.at.moment)
        finally:
            collector.interventions = 0.0

    def given(self) -> list[Lived]:
        """The expert's episodes."""
        found = []
        for rollout, track in expert_episodes(self.run, self.stage, self.policy, self.stage.expert_episodes):
            sees = self.learner.remembered_of(track)
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
        return lived(track, self.learner.remembered_of(track), task=task, longest=longest, success=success)

    def longest(self, label: str) -> int:
        """Steps of the task's longest episode."""
        collector = self.run.collector
        assert isinstance(collector, SimulatorCollector)
        return collector.lanes(label)[0].rules.max_steps

    # -- learning ---------------------------------------------------------------------------------------------------------

    def learn(self) -> dict[str, float]:
        """Learn the values, label all calls, and imitate them; return metrics."""
        run, stage, learner = self.run, self.stage, self.learner
        with run.clock("update"):
            self.sampler.sleep()
            if stage.restart:
                learner.restart()
            elif (every := stage.optimizer_every) and run.at.stage_step and run.at.stage_step % every == 0:
                learner.optimizer.forget()
            try:
                metrics = learner.learn_values(self.experience, run.at.stage_step)
                labels, counts = learner.labels(self.experience)
                metrics |= counts | self.imitate(labels)
            except UserError as error:
                raise error.at(f"step {run.at.step + 1}") from error.__cause__
        learner.calls += 1
        return metrics | {"recap/calls": float(len(self.experience))}

    def imitate(self, labels: list[bool]) -> dict[str, float]:
        """`updates` steps of the policy on calls under their conditions; return the mean of each metric."""
        calls, summed = self.experience.calls(), dict[str, float]()
        for number in range(self.stage.updates):
            chance = random.Random(derive(self.learner.seed, "imitate", self.learner.calls, number))
            drawn = chance.choices(range(len(calls)), k=self.stage.batch_size)
            batches = self.batch([calls[n] for n in drawn], [labels[n] for n in drawn], chance)
            found = self.learner.imitator.update(batches, self.run.at.stage_step)
            for name in ("loss", "grad_norm", "learning_rate"):
                summed[name] = summed.get(name, 0.0) + found[name] / self.stage.updates
        return summed

    def batch(self, calls: list[tuple[Lived, int]], labels: list[bool], chance: random.Random) -> list[Batch]:
        """A batch of these calls, each under the text of its label or, by chance, under none."""
        policy, condition = self.policy, self.stage.condition
        texts = [
            "" if chance.random() < condition.drop else condition.positive if label else condition.negative for label in labels
        ]
        told = [f"{episode.told(call)} {text}".strip() for (episode, call), text in zip(calls, texts, strict=True)]
        seen = shown(calls, told).on(policy.device)
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


STEPS = RecapSteps

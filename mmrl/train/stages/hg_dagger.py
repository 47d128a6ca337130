"""The step of an `hg-dagger` stage: play, remember what another did in the policy's place, and imitate that."""

from __future__ import annotations

from mmrl.config.sections import HgDaggerStage
from mmrl.train.stages.experience import ExperienceSteps
from mmrl.train.update.experience import Lived
from mmrl.train.update.learner import Learner


class HgDaggerSteps(ExperienceSteps):
    """HG-DAgger, for every policy that acts. Who takes over decides when: the policy's own actions teach nothing, neither those
    before that nor those after it."""

    stage: HgDaggerStage

    def begin(self) -> None:
        self.learner = Learner(self.policy, self.stage, train=self.config.train)

    def remember(self, fresh: list[Lived]) -> dict[str, float]:
        """Only of episodes in which another acted there is anything to learn."""
        for episode in fresh:
            if episode.tensors["corrected"].any():
                self.experience.add(episode)
        return {"hg_dagger/calls": 0.0}

    def learn(self) -> dict[str, float]:
        at = self.run.at
        calls = [(episode, call) for episode in self.experience for call in episode.by_others(self.policy.ahead)]
        if not calls:  # nobody's actions fill a chunk
            return {}
        told = lambda n, chance: calls[n][0].told(calls[n][1])  # noqa: E731
        found = self.imitate(self.learner, calls, told, self.config.seed, "hg-dagger", at.stage, at.stage_step)
        return found | {"hg_dagger/calls": float(len(calls))}


STEPS = HgDaggerSteps

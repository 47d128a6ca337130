"""The step of an `off-policy` stage with `improve`: play with what the critics choose, remember, learn the critics, and let the
policy imitate what they choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.batches import ones
from mmrl.policies.eyes import Eyes
from mmrl.policies.squashed import Squashed
from mmrl.train.sampling.groups import Sampled
from mmrl.train.sampling.offline import offline_memory
from mmrl.train.stages.off_policy import OffPolicySteps
from mmrl.train.update.candidates import OfFeatures, OfScenes
from mmrl.train.update.improving import Improving
from mmrl.train.update.learner import Learner
from mmrl.train.update.packer import PackOptions
from mmrl.train.update.scenes import BothScenes, Scenes

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

PICK = -1
"""The use of a call's random numbers with which a candidate is drawn; the policy's own uses are 0 and above."""


class ImprovingSteps(OffPolicySteps):
    """PA-RL, for every policy that acts. A `Squashed` policy acts by what the memory keeps; any other sees the scenes again, and
    its critics read what a frozen copy of it sees."""

    learner: Improving
    unread = False
    """Whether the offline data, which the eyes of a resumed run must see, are still to be read."""

    def __init__(self, run: StageContext, stage: OffPolicyStage) -> None:
        super().__init__(run, stage)
        refuse_what_cannot_imitate(self.policy)

    def begin(self) -> None:
        stage, policy, how = self.stage, self.policy, self.stage.improve
        assert how is not None
        imitator = Learner(policy, stage, train=self.config.train)
        sizes = (policy.chunk * policy.dims, stage, self.seed)
        if isinstance(policy, Squashed):
            self.learner = Improving(imitator, OfFeatures(policy, how.candidates), policy.width, *sizes)
        else:
            self.sees = eyes = Eyes(policy, how.state)
            self.scenes = self.scenes or Scenes(stage.capacity)
            self.unread = True
            self.both = BothScenes(self.scenes)
            self.learner = Improving(imitator, OfScenes(policy, how.candidates, self.both), eyes.width, *sizes, eyes)
        self.memory = self.new_memory()

    def __call__(self) -> dict[str, float]:
        if self.unread:
            if not self.taken_over:  # else a checkpoint had them
                self.offline, self.offline_scenes = offline_memory(self.run, self.stage, self.policy, self.sees)
            self.unread = False
        self.learner.source.renew(derive(self.seed, "candidates", self.learner.calls))
        return super().__call__()

    @property
    def warming(self) -> bool:
        """Whether the critics still learn alone."""
        return self.run.at.stage_step < self.learner.how.warmup_steps

    def learn(self, count: int) -> dict[str, float]:
        metrics = super().learn(count)
        how, summed = self.learner.how, dict[str, float]()
        if not self.learns or self.warming:
            return metrics
        updates = max(1, round(count * how.updates))
        with self.run.clock("update"):
            for number in range(updates):
                drawn, best, found = self.learner.imitated(self.memory, self.offline, number)
                shown = self.learner.source.imitations(drawn, best)
                batches = self.run.packer.pack(shown, ones(shown), PackOptions())
                try:
                    found |= self.learner.imitator.update(batches, self.run.at.stage_step)
                except UserError as error:
                    raise error.at(f"step {self.run.at.step + 1}") from error.__cause__
                for name in ("loss", "grad_norm", "learning_rate", "off_policy/gain"):
                    summed[name] = summed.get(name, 0.0) + found[name]
        return metrics | {name: value / updates for name, value in summed.items()} | {"off_policy/imitations": float(updates)}

    # -- playing ----------------------------------------------------------------------------------------------------------

    def play(self) -> Sampled:
        """With what the critics choose, once they have learned."""
        chosen = self.learner.how.acts and self.learner.calls > 0 and not self.warming
        self.run.collector.chooser = self.choose if chosen else None
        try:
            return super().play()
        finally:
            self.run.collector.chooser = None  # evaluations are of the policy alone

    def choose(self, seen: Observation, seeds_n: torch.Tensor, calls_n: torch.Tensor, temperature: float) -> ActionSample:
        """Candidates of the policy, moved up, as its choices: the best, or drawn by their Qs. Their log-probabilities are 0, of
        which nothing is made."""
        policy, how = self.policy, self.learner.how
        seen = seen.on(policy.device)
        draw = CallRandomness(seeds_n=seeds_n, calls_n=calls_n).to(policy.device)
        candidates = policy.candidates(seen, seeds_n, calls_n, how.candidates, temperature)
        picked = (self.sees.remembered(seen, draw), candidates.flatten(2), how.acting_temperature, draw.uniform(PICK))
        best_nKA = self.learner.picked(*picked).unflatten(1, candidates.shape[2:])
        with torch.no_grad():
            choices = policy.choices_of(best_nKA, seen)
        logprobs_nKC, tokens_n = policy.unsampled(choices)
        none = torch.zeros_like(logprobs_nKC)
        return ActionSample(actions_nKA=best_nKA, choices=choices, logprobs_nKC=none, tokens_n=tokens_n)


def refuse_what_cannot_imitate(policy: Squashed | object) -> None:
    """Raise UserError for a policy that can't imitate single calls."""
    if isinstance(policy, Squashed) and policy.residual:
        raise UserError("stages.improve: a residual policy corrects another and can't imitate: train its base")
    ahead, chunk = getattr(policy, "ahead", 1), getattr(policy, "chunk", 1)
    if ahead != chunk:
        raise UserError(
            f"stages.improve: the policy learns {ahead} actions at a time and carries out {chunk}, so the critics can't choose "
            f"the rest: set policy.options.chunk = {ahead}"
        )


STEPS = ImprovingSteps

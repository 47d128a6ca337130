"""The step of an `off-policy` stage: play, remember, and learn from what is remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Score
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.batches import Credit
from mmrl.policies.eyes import Sees
from mmrl.policies.squashed import Squashed
from mmrl.train.metrics import rl_metrics
from mmrl.train.sampling.groups import Sampled, outcomes
from mmrl.train.sampling.interventions import expert_takes_over, stretches
from mmrl.train.sampling.offline import episode_of, layout_of, offline_memory, paid
from mmrl.train.sampling.rule_states import RuleState, load_states, save_states, states_of
from mmrl.train.sampling.rules import plugin_rules
from mmrl.train.sampling.sampler import Sampler
from mmrl.train.sampling.verified import Verified
from mmrl.train.stages.base import Steps
from mmrl.train.update.crossq import CrossQ
from mmrl.train.update.gripper import WithGripper
from mmrl.train.update.improving import Improving
from mmrl.train.update.iql import Iql
from mmrl.train.update.paying import Paying
from mmrl.train.update.replay import Episode, Replay
from mmrl.train.update.rlpd import Rlpd
from mmrl.train.update.scenes import BothScenes, Scenes, observations
from mmrl.train.update.td3 import Td3

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

WAYS: Mapping[str, type[Rlpd | Td3 | Iql]] = {"": Rlpd, "td3": Td3, "iql": Iql, "crossq": CrossQ}
"""`OffPolicyStage.way` -> the learner of a policy that acts by what the memory keeps."""
MEMORY = "memory.safetensors"
"""The memory's file in a checkpoint."""
SCENES = "scenes.safetensors"
"""The file of what was seen in the memory's episodes, in a checkpoint."""
OFFLINE, OFFLINE_SCENES = "offline.safetensors", "offline-scenes.safetensors"
"""The files of the offline memory and of what was seen in it, once steps of those who took over are in it."""


class OffPolicySteps(Steps):
    """Play episodes, add them to the memory, and learn from it `updates` times for each of their steps."""

    has_advantages = False
    stage: OffPolicyStage
    learner: Rlpd | Td3 | Iql | Improving  # type: ignore[assignment]  # it learns from a memory, and not from batches of rollouts
    offline: Replay | None
    memory: Replay
    scenes: Scenes | None = None
    """What was seen in the memory's episodes, if the policy or a rule sees it again."""
    offline_scenes: Scenes | None = None
    """The same of the offline memory."""
    both: BothScenes | None = None
    """The two together, for a learner that acts again on what was seen."""
    taken_over = False
    """Whether the offline memory also holds steps in which another than the policy acted."""
    sees: Sees
    """What gives the critics' features."""

    def __init__(self, run: StageContext, stage: OffPolicyStage) -> None:
        super().__init__(run, stage)
        assert isinstance(run.policy, ActingPolicy)
        self.stage, self.policy = stage, run.policy
        self.rules = plugin_rules(stage)
        self.sampler = Sampler(run, stage, self.source, [Verified(), *self.rules])
        self.rule_states: Sequence[RuleState] = ()
        """Those of `rules` after the last step."""
        self.paying = Paying([rule for rule in self.rules if rule.revision is not None])
        if self.paying:
            self.scenes = Scenes(stage.capacity)
        if isinstance(run.policy, Squashed):
            self.sees = self.seen_by(run.policy)
            self.offline, self.offline_scenes = offline_memory(run, stage, run.policy, self.sees)

    def seen_by(self, policy: Squashed) -> Sees:
        """What gives the critics' features of a policy that acts by them."""
        return policy

    @property
    def seed(self) -> int:
        return derive(self.config.seed, "off-policy", self.run.at.stage)

    def begin(self) -> None:
        assert isinstance(self.policy, Squashed)
        actor, features, stage = self.policy.actor, self.policy.width, self.stage
        if actor.gripper is not None:
            place = features - self.policy.state + (stage.gripper.state if stage.gripper else 0)  # the state comes last
            self.learner = WithGripper(actor, features, stage, self.seed, place)
        else:
            self.learner = WAYS[stage.way](actor, features, stage, self.seed)
        self.memory = self.new_memory()

    def new_memory(self) -> Replay:
        stage = self.stage
        drawn = {"gamma": stage.gamma, "alpha": stage.priority, "beta": stage.priority_correction if stage.priority else 0.0}
        layout = layout_of(self.run, stage, self.sees)
        return Replay(layout, stage.capacity, **drawn, changing=bool(self.paying))

    def __call__(self) -> dict[str, float]:
        if self.run.at.stage_step < self.stage.offline_steps:
            self.run.consistent = False
            return self.learn(self.stage.offline_updates)
        sampled = self.play()
        self.run.report_failures(sampled.everything)
        self.run.consistent = False  # until the step is counted: the memory changes, and then the weights
        before = self.memory.added
        kept = self.remember(sampled)
        self.paying.correct(self.memory, self.scenes)
        self.paying.correct(self.offline, self.offline_scenes)
        self.record(sampled, Credit(advantages=kept))
        update = self.learn(self.memory.added - before)
        self.run.clock.add(sampled.seconds)
        self.source.tell(outcomes(sampled.sampled, 0.5))
        return rl_metrics(sampled.rollouts, sampled.scores, kept) | sampled.counts | update

    def play(self) -> Sampled:
        """The scored episodes of a step; in some the simulator's expert takes over."""
        with expert_takes_over(self.run.collector, self.stage.interventions):
            return self.sampler(self.source.upcoming(self.sampler.prompts), self.run.at.moment)

    def remember(self, sampled: Sampled) -> torch.Tensor:
        """Add the episodes to the memory. Returns float32 [N]: 1 for those that it took, NaN for those whose score failed."""
        kept_N = torch.full((len(sampled.rollouts),), torch.nan)
        with self.run.clock("process"):
            for n, (rollout, score) in enumerate(zip(sampled.rollouts, sampled.scores, strict=True)):
                assert isinstance(rollout, Trajectory)
                if rollout.data is not None and score.value is not None:
                    self.keep(rollout, score)
                    kept_N[n] = 1.0
        return kept_N

    def keep(self, rollout: Trajectory, score: Score) -> None:
        """Add an episode to the memory."""
        track = rollout.data
        assert track is not None
        features, actions_TA = self.sees.transitions(track)
        rewards_T = paid(track, score)
        changing_T = self.paying.now(observations(track).rows(torch.arange(1, len(features)))) if self.paying else None
        fixed_T = rewards_T if changing_T is None else rewards_T - changing_T
        episode = episode_of(features, actions_TA, fixed_T, rollout.status, changing_T)
        self.memory.add(episode)
        if self.scenes is not None:
            self.scenes.add(track)
        if rollout.corrected:
            self.keep_interventions(track, episode)

    def keep_interventions(self, track: TrajectoryData, episode: Episode) -> None:
        """Add the steps of an episode in which another acted to the offline memory, too, as HIL-SERL does (Luo et al., section
        3.3, arXiv 2410.21845, and its `train_rlpd.py`)."""
        assert track.corrected_T is not None
        if not self.taken_over:
            self.taken_over = True
            nothing = Replay(self.memory.layout, 1, gamma=self.stage.gamma, changing=bool(self.paying))
            self.offline = (self.offline or nothing).with_room(self.stage.capacity)
            if self.scenes is not None:
                self.offline_scenes = self.offline_scenes or Scenes(self.offline.capacity)
                self.offline_scenes.capacity = self.offline.capacity
        assert self.offline is not None
        for first, end in stretches(track.corrected_T):
            self.offline.add(episode.part(first, end, self.stage.gamma))
            if self.scenes is not None and self.offline_scenes is not None:
                self.offline_scenes.add(track, first, end)

    @property
    def learns(self) -> bool:
        """Whether there is enough to learn from."""
        return self.run.at.stage_step < self.stage.offline_steps or self.memory.added > self.stage.starts_after

    def learn(self, count: int) -> dict[str, float]:
        """Learn for so many new steps of the simulators, or make so many updates offline; return the mean of each metric."""
        run, summed = self.run, dict[str, float]()
        calls = count if self.learns else 0
        with run.clock("update"):
            self.sleep()
            if self.both is not None:
                self.both.offline = self.offline_scenes
            if run.at.stage_step == self.stage.explore_steps > 0:
                self.learner.begin_anew()
            if (every := self.stage.optimizer_every) and run.at.stage_step and run.at.stage_step % every == 0:
                self.learner.forget()
            try:
                for _ in range(calls):
                    for name, value in self.learner.update(self.memory, self.offline, run.at.stage_step).items():
                        summed[name] = summed.get(name, 0.0) + value
            except UserError as error:
                raise error.at(f"step {run.at.step + 1}") from error.__cause__
        remembered = {"off_policy/transitions": float(len(self.memory)), "off_policy/updates": float(calls * self.stage.updates)}
        if self.offline is not None:
            remembered["off_policy/offline"] = float(len(self.offline))
        return {name: value / calls for name, value in summed.items()} | remembered

    def sleep(self) -> None:
        self.sampler.sleep()

    # -- resume -----------------------------------------------------------------------------------------------------------

    def step_ended(self) -> None:
        self.rule_states = states_of(self.rules)

    def save_beside(self, folder: Path) -> None:
        self.memory.save(folder / MEMORY)
        if self.scenes is not None:
            self.scenes.save(folder / SCENES)
        if self.taken_over and self.offline is not None:
            self.offline.save(folder / OFFLINE)
            if self.scenes is not None and self.offline_scenes is not None:
                self.offline_scenes.save(folder / OFFLINE_SCENES)
        save_states(self.rule_states, folder)

    def load_beside(self, folder: Path) -> None:
        load_states(self.rules, folder)
        self.step_ended()
        self.memory.load(folder / MEMORY)
        if self.scenes is not None:
            self.scenes.load(folder / SCENES)
        if (folder / OFFLINE).is_file():
            self.taken_over = True
            self.offline = Replay.opened(folder / OFFLINE, self.memory.layout, gamma=self.stage.gamma, whole=True)
            self.paying.corrected(self.offline)
            if (folder / OFFLINE_SCENES).is_file():
                self.offline_scenes = Scenes(self.offline.capacity)
                self.offline_scenes.load(folder / OFFLINE_SCENES)
        self.paying.corrected(self.memory)


STEPS = OffPolicySteps

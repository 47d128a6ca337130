"""What an `off-policy` stage learns from besides its own episodes: another run's memory, or episodes of an expert."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmrl.api.simulators.history import in_track
from mmrl.api.types import Status
from mmrl.config.sections import EXPERT_EPISODES, OffPolicyStage
from mmrl.policies.squashed import Squashed
from mmrl.rollout.simulators.experts import Episodes
from mmrl.rollout.simulators.lane import EpisodeJob
from mmrl.train.update.replay import Episode, Layout, Replay

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

SHOWN = "demo"
"""The split whose starts the expert plays, if a task has it; otherwise the stage's."""


def layout_of(run: StageContext, stage: OffPolicyStage, policy: Squashed) -> Layout:
    """What the transitions of the stage are of: all its tasks have the same simulator."""
    simulation = run.tasks[next(iter(run.config.weights(stage)))].simulation
    assert simulation is not None
    return Layout(simulator=simulation.simulator, action=policy.dims, features=policy.width)


def offline_memory(run: StageContext, stage: OffPolicyStage, policy: Squashed) -> Replay | None:
    """The memory that `stage.offline` names; None if it names none. A resumed run makes the same. Raises UserError for a file
    that is torn, or of another simulator, action space, features or discount, and for an expert's episode that fails."""
    if not stage.offline:
        return None
    layout = layout_of(run, stage, policy)
    if stage.offline != EXPERT_EPISODES:
        return Replay.opened(Path(stage.offline), layout, gamma=stage.gamma)
    episodes = [episode for label, count in _shares(run, stage).items() for episode in _shown(run, stage, policy, label, count)]
    found = Replay(layout, max(1, sum(len(episode.rewards_T) for episode in episodes)), gamma=stage.gamma)
    for episode in episodes:
        found.add(episode)
    return found


def _shares(run: StageContext, stage: OffPolicyStage) -> dict[str, int]:
    """Task -> its episodes, about evenly."""
    labels = list(run.config.weights(stage))
    return {label: len(range(n, stage.offline_episodes, len(labels))) for n, label in enumerate(labels)}


def _shown(run: StageContext, stage: OffPolicyStage, policy: Squashed, label: str, count: int) -> list[Episode]:
    """The expert's first episodes of a task."""
    if not count:
        return []
    entry, at_once = run.setup.entries[label], min(run.config.simulate.num_envs, count)
    split = SHOWN if SHOWN in run.tasks[label].splits else stage.split
    played = Episodes(entry.id, entry.options, count, split=split, environments=at_once)
    try:
        return [_episode(job, policy) for job in played.jobs()]
    finally:
        played.close()


def _episode(job: EpisodeJob, policy: Squashed) -> Episode:
    assert job.track is not None
    track = in_track(job.track, policy.history, 1)
    features = policy.remembered_of(track)
    return Episode(
        seen_TF=features[:-1],
        after_TF=features[1:],
        actions_TA=torch.as_tensor(track.choices)[:, 0].float().clamp(-1, 1),
        rewards_T=track.rewards_TK.sum(1),
        terminated=job.status is Status.FINISHED,
    )

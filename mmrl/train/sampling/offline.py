"""What an `off-policy` stage learns from besides its own episodes: another run's memory, or episodes of an expert."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.simulators.types import Demonstration, Observation, TrajectoryData
from mmrl.api.types import Score, Status
from mmrl.config.off_policy import EXPERT_EPISODES, RECORDED_EPISODES
from mmrl.config.sections import OffPolicyStage, Training
from mmrl.judge import build_cases
from mmrl.judge.rewards import weights_at
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.eyes import Sees
from mmrl.rollout.simulators.demonstrations import checked, in_camera_order, single_actions
from mmrl.rollout.simulators.experts import Episodes
from mmrl.rollout.simulators.lane import Lane
from mmrl.train.sampling.recorded_scale import as_seen, lane_of, other_sizes, paid_otherwise, paid_range
from mmrl.train.update.replay import Episode, Layout, Replay
from mmrl.train.update.scenes import Scenes

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

SHOWN = "demo"
"""The split whose starts the expert plays, if a task has it; otherwise the stage's."""


def layout_of(run: StageContext, stage: OffPolicyStage, sees: Sees) -> Layout:
    """What the transitions of the stage are of: all its tasks have the same simulator."""
    simulation = run.tasks[next(iter(run.config.weights(stage)))].simulation
    assert simulation is not None
    return Layout(simulator=simulation.simulator, action=sees.numbers, features=sees.width, noise=sees.noise_of)


def offline_memory(
    run: StageContext, stage: OffPolicyStage, policy: ActingPolicy, sees: Sees
) -> tuple[Replay | None, Scenes | None]:
    """The memory that `stage.offline` names, and of an expert's episodes what was seen; None if it names none. Verifiers pay an
    expert's episodes as they pay played ones. A resumed run makes the same. Raises UserError for a file that is torn, or of
    another simulator, action space, features or discount, and for an expert's episode that fails."""
    if not stage.offline:
        return None, None
    layout = layout_of(run, stage, sees)
    if stage.offline == RECORDED_EPISODES:
        return recorded_memory(run, stage, policy, sees, layout)
    if stage.offline != EXPERT_EPISODES:
        return Replay.opened(Path(stage.offline), layout, gamma=stage.gamma), None
    played = expert_episodes(run, stage, policy, stage.offline_episodes)
    capacity = max(1, sum(len(track.choices) for _, track in played))
    found, scenes = Replay(layout, capacity, gamma=stage.gamma, changing=bool(stage.rules)), Scenes(capacity)
    for (rollout, track), score in zip(played, scored(run, [rollout for rollout, _ in played]), strict=True):
        if score.value is None:
            continue
        seen_TF, actions_TA = sees.remembered_of(track), track.choices.float().flatten(1).clamp(-1, 1)
        found.add(episode_of(seen_TF, actions_TA, paid(track, score), rollout.status))
        scenes.add(track)
    return found, scenes


def recorded_memory(
    run: StageContext, stage: OffPolicyStage, policy: ActingPolicy, sees: Sees, layout: Layout
) -> tuple[Replay, Scenes]:
    """The memory of the recorded episodes of the stage's tasks, about as many of each, and what was seen in them. Verifiers don't
    pay here: the data say what was paid. Raises UserError for data that don't fit, and warns of data that are of another scale
    than what the task's simulator shows and pays (`recorded_scale`)."""
    labels, played = list(run.config.weights(stage)), list[tuple[str, TrajectoryData, Status]]()
    for n, label in enumerate(labels):
        shown = run.tasks[label].recorded_episodes(len(range(n, stage.offline_episodes, len(labels))))
        lane, task = lane_of(run.collector, label), run.tasks[label]
        here = lane.last_seen if lane else None
        found = [(label, *recorded(label, task, episode, policy, number, here)) for number, episode in enumerate(shown)]
        if not found:
            raise UserError(
                f'stages.offline = "{RECORDED_EPISODES}": task {label!r} gives none of offline_episodes = '
                f"{stage.offline_episodes} for {len(labels)} tasks: raise that, or record some"
            )
        played += found
        for remark in _differences(run, stage, label, [track for _, track, _ in found], lane):
            run.warn("stages.offline", f"task {label!r}: {remark}")
    capacity = sum(len(track.choices) for _, track, _ in played)
    memory, scenes = Replay(layout, capacity, gamma=stage.gamma, changing=bool(stage.rules)), Scenes(capacity)
    for label, track, status in played:
        try:
            seen_TF, actions_TA = sees.remembered_of(track), track.choices.float().flatten(1)
        except UserError as error:  # which speaks of what a simulator shows
            raise UserError(f"task {label!r}: what its data set shows in place of the simulator: {error}") from error
        memory.add(episode_of(seen_TF, actions_TA, track.rewards_TK.sum(1), status))
        scenes.add(track)
    return memory, scenes


def _differences(
    run: StageContext, stage: OffPolicyStage, label: str, tracks: Sequence[TrajectoryData], lane: Lane | None
) -> list[str]:
    """In what a task's recorded episodes differ from played ones, though both can be learned from."""
    if lane is None:
        return []
    told = [other_sizes(tracks[0], lane.last_seen)] if lane.last_seen else []
    if stage.offline_steps < stage.steps:  # later ones play
        weights = weights_at(run.setup.weights[label], 0.0)
        verifiers = [(run.setup.verifiers[name], weight) for name, weight in weights.items()]
        sums = [float(track.rewards_TK.sum()) for track in tracks]
        told.append(paid_otherwise(sums, *paid_range(lane.simulation, verifiers, lane.rules.max_steps)))
    return [remark for remark in told if remark]


def recorded(
    label: str, task: Task, shown: Demonstration, policy: ActingPolicy, number: int, here: Observation | None = None
) -> tuple[TrajectoryData, Status]:
    """The recorded episode of this number as calls of the policy, and how it ended. What followed the last action isn't
    recorded: where the episode terminated, nothing is made of it, and elsewhere that action is left out. here: what the task's
    simulator shows, if that is known; what it doesn't show is left out."""
    where = f"task {label!r}: recorded episode {number} (from 0)"
    shown = as_seen(in_camera_order(checked(shown, where), task.simulation), here, where)
    count = len(shown.actions_MA) if shown.terminated else len(shown.actions_MA) - 1
    if shown.rewards_T is None or len(shown.rewards_T) < count or not torch.isfinite(shown.rewards_T).all():
        raise UserError(f"{where} must have finite rewards, one for each action (rewards_T): mend or remove it")
    if not count:
        raise UserError(
            f"{where} is a single action, and what followed it isn't recorded: remove it, or say in the data that it terminated"
        )
    if shown.actions_MA.shape[1] != policy.dims:
        raise UserError(
            f"{where} has actions of {shown.actions_MA.shape[1]} numbers, and policy.options.dims = {policy.dims}: make them "
            "equal"
        )
    track = single_actions(shown, count, count + 1)
    track = replace(track, choices=track.choices.clamp(-1, 1), rewards_TK=shown.rewards_T[:count, None].float())
    return in_chunks(policy.with_history(track), policy.chunk), Status.FINISHED if shown.terminated else Status.TRUNCATED_TURNS


def scored(run: StageContext, rollouts: Sequence[Trajectory]) -> list[Score]:
    """What verifiers give an expert's episodes, by their weights when a stage begins. Scores that fail are reported in one line.
    Raises UserError if all do."""
    weights = [weights_at(run.setup.weights[rollout.prompt.task], 0.0) for rollout in rollouts]
    if not any(weight for of_task in weights for weight in of_task.values()):
        return [Score(0.0)] * len(rollouts)
    found = run.judge.score(build_cases(rollouts), weights)
    failed = [score.detail for score in found if score.failed]
    if failed and len(failed) == len(found):
        raise UserError(f"stages.offline: verifiers scored none of {len(found)} of the expert's episodes: {failed[0]}")
    if failed:
        run.warn("stages.offline", f"{len(failed)} of {len(found)} of the expert's episodes have no score: {failed[0]}")
    return found


def paid(track: TrajectoryData, score: Score) -> torch.Tensor:
    """float32 [T]: the rewards of an episode's calls. What verifiers and rules pay for calls is paid with these, and the rest
    with the last one."""
    assert score.value is not None
    rewards_T = track.rewards_TK.sum(1).cpu().clone()
    if score.steps:
        rewards_T += torch.tensor(score.steps)
    rewards_T[-1] += score.value - math.fsum(score.steps)
    return rewards_T


def episode_of(
    features: torch.Tensor,
    actions_TA: torch.Tensor,
    rewards_T: torch.Tensor,
    status: Status,
    changing_T: torch.Tensor | None = None,
) -> Episode:
    """What a memory keeps of an episode. features: [T + 1, F]. changing_T: see `Episode`."""
    return Episode(
        seen_TF=features[:-1],
        after_TF=features[1:],
        actions_TA=actions_TA,
        rewards_T=rewards_T,
        terminated=status is Status.FINISHED,
        changing_T=changing_T,
    )


def expert_episodes(
    run: StageContext, stage: Training, policy: ActingPolicy, episodes: int
) -> list[tuple[Trajectory, TrajectoryData]]:
    """So many episodes of the simulators' experts, about evenly over the stage's tasks, as calls of the policy, and their data.
    The task of a prompt is the entry's label."""
    labels = list(run.config.weights(stage))
    shares = {label: len(range(n, episodes, len(labels))) for n, label in enumerate(labels)}
    return [played for label, count in shares.items() for played in _shown(run, stage, policy, label, count)]


def _shown(
    run: StageContext, stage: Training, policy: ActingPolicy, label: str, count: int
) -> list[tuple[Trajectory, TrajectoryData]]:
    """The expert's first episodes of a task."""
    if not count:
        return []
    entry, at_once = run.setup.entries[label], min(run.config.simulate.num_envs, count)
    split = SHOWN if SHOWN in run.tasks[label].splits else stage.split
    played = Episodes(entry.id, entry.options, count, split=split, environments=at_once)
    try:
        found = []
        for job in played.jobs():
            assert job.track is not None
            track, prompt = in_chunks(policy.with_history(job.track), policy.chunk), replace(job.prompt, task=label)
            rollout = Trajectory(prompt=prompt, group=0, status=job.status, data=track, outcome=job.outcome)
            found.append((rollout, track))
        return found
    finally:
        played.close()


def in_chunks(track: TrajectoryData, chunk: int) -> TrajectoryData:
    """An episode of T single actions as T / chunk calls, rounded up: the last one's missing actions repeat the last action, and
    are not valid. So do those of a call behind which the instruction changes."""
    parts = [(first, end) for _, begin, end in track.stretches for first in range(begin, end, chunk)]
    first, ends_T1 = torch.tensor([part[0] for part in parts]), torch.tensor([part[1] for part in parts])[:, None]
    each_TK = first[:, None] + torch.arange(chunk)
    valid_TK, each_TK = each_TK < ends_T1, each_TK.minimum(ends_T1 - 1)
    rows = torch.cat([first, torch.tensor([len(track.choices)])])
    return replace(
        track,
        instructions=tuple(track.told[row] for row in rows.tolist()) if track.instructions else (),
        images={camera: shown[rows] for camera, shown in track.images.items()},
        state=None if track.state is None else track.state[rows],
        choices=track.choices[:, 0][each_TK],
        logprobs_TKC=torch.full((len(first), chunk, 1), torch.nan),
        valid_TK=valid_TK,
        rewards_TK=track.rewards_TK[:, 0][each_TK] * valid_TK,
        actions_TKA=track.choices[:, 0][each_TK].float().clamp(-1, 1),
    )

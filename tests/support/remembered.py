"""Memories of episodes whose states say which episode and step they are of."""

from __future__ import annotations

import torch

from mmrl.api.simulators.types import TrajectoryData
from mmrl.train.update.replay import Episode, Layout, Replay
from mmrl.train.update.scenes import Scenes


def track(number: int, count: int) -> TrajectoryData:
    """An episode whose state is its number and the step, and whose picture is the step."""
    at = torch.arange(count + 1)
    return TrajectoryData(
        instruction=f"do {number}",
        images={"front": at.to(torch.uint8)[:, None, None, None].expand(-1, 2, 2, 3)},
        state=torch.stack([torch.full_like(at, number), at], 1).float(),
        choices=torch.zeros(count, 1, 1),
        logprobs_TKC=torch.zeros(count, 1, 1),
        valid_TK=torch.ones(count, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(count, 1),
    )


def episode(shown: TrajectoryData) -> Episode:
    assert shown.state is not None
    count = len(shown.choices)
    return Episode(
        seen_TF=shown.state[:-1], after_TF=shown.state[1:], actions_TA=torch.zeros(count, 1), rewards_T=torch.zeros(count),
        terminated=True,
    )  # fmt: skip


def both(lengths: list[int], capacity: int) -> tuple[Replay, Scenes]:
    replay, scenes = Replay(Layout(simulator="s", action=1, features=2), capacity, gamma=0.9), Scenes(capacity)
    for number, count in enumerate(lengths):
        replay.add(episode(track(number, count)))
        scenes.add(track(number, count))
    return replay, scenes

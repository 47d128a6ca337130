"""Data of trajectories with pictures that a test can tell apart."""

import numpy as np
import torch

from mmrl.api.simulators.types import TrajectoryData


def trajectory_data(pictures, valid, step_s=0.2, **more):
    """pictures: camera -> uint8 [T + 1, H, W, 3]."""
    valid_TK = torch.tensor(valid, dtype=torch.bool)
    calls, chunk = valid_TK.shape
    return TrajectoryData(
        instruction="turn",
        images={name: torch.as_tensor(shown) for name, shown in pictures.items()},
        state=None,
        choices=torch.zeros(calls, chunk, 1),
        logprobs_TKC=torch.zeros(calls, chunk, 1),
        valid_TK=valid_TK,
        rewards_TK=torch.zeros(calls, chunk),
        step_s=step_s,
        **more,
    )


def noise(count, height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)

"""Options of SmolVLA."""

from __future__ import annotations

from dataclasses import dataclass

from mmrl.policies.acting.options import (
    Actions,
    CameraOptions,
    CheckpointOptions,
    Crop,
    NoiseOptions,
    PromptOptions,
    StatisticsOptions,
    Steps,
    Width,
)


@dataclass(frozen=True, kw_only=True)
class SmolVLAOptions(StatisticsOptions, CameraOptions, PromptOptions, NoiseOptions, CheckpointOptions):
    dims: Actions | None = None
    """Numbers of an action. Unset: as the checkpoint says, else 7. For a tiny one, and with `--smoke`, it must be said where 7
    don't fit."""
    chunk: Actions | None = None
    """Actions of a call that are carried out. Unset: the checkpoint's `n_action_steps`; 10 for a tiny one."""
    state: Width | None = None
    """Numbers of the robot's state that is read; 0 reads none. Unset: as the checkpoint says, else 0."""
    steps: Steps | None = None
    """Steps of the flow from noise to actions. Unset: the checkpoint's `num_steps`; 4 for a tiny one."""
    crop: Crop = 1.0
    """Share of a picture's area around its middle that is kept."""
    backbone: str = ""
    """Folder or hub name with the config.json and tokenizer of the vision-language model, where the one that the checkpoint names
    can't be reached."""

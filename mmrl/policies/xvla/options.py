"""Options of X-VLA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mmrl.api.specs import Bounds
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
class XVLAOptions(StatisticsOptions, CameraOptions, PromptOptions, NoiseOptions, CheckpointOptions):
    dims: Actions | None = None
    """Numbers of an action. Unset: as the checkpoint says, else those that the action space has, 7 for hands. With `ee6d` and
    `agibot_ee6d`, 7 or 14 are the place, the turn as axis times angle, and the gripper of each hand, and 10 or 20 the network's
    own numbers."""
    chunk: Actions | None = None
    """Actions of a call that are carried out. Unset: the checkpoint's `n_action_steps`; 10 for a tiny one."""
    state: Width | None = None
    """Numbers of the robot's state that is read; 0 reads none. Unset: as the checkpoint says, else 0. Where an action's turns are
    axis times angle, the state begins with the place and such a turn, for each hand in equal shares of it."""
    steps: Steps | None = None
    """Steps from noise to actions. Unset: the checkpoint's `num_denoising_steps`; 4 for a tiny one."""
    crop: Crop = 1.0
    """Share of a picture's area around its middle that is kept."""
    action_mode: Literal["", "ee6d", "agibot_ee6d", "joint", "franka_joint7", "auto", "so101_bimanual"] = ""
    """The action space: what its numbers are, how they are learned and which the network reads. Empty: the checkpoint's. `auto`
    takes any numbers, and so fits any robot, from the weights of any space with 20."""
    domain: Annotated[int, Bounds(low=0, high=100_000)] | None = None
    """Whose soft prompts, action encoder and decoder are used and trained: a robot with its cameras and its data. Unset: as the
    checkpoint's processors say, else 0."""
    rotation: Literal["columns", "rows"] = "columns"
    """Order of a turn's six numbers: the matrix's first column and then its second, as for LIBERO and in LeRobot; or row by row,
    as for other data sets of X-VLA's authors."""
    resize: Literal["auto", "lerobot", "published"] = "auto"
    """How pictures are scaled: `lerobot` to fit, between the nearest pixels, with grey at the left and above; `published` to fill
    all, bicubic, as X-VLA's own processor does; `auto` is that of the checkpoint's layout."""
    tokenizer: str = ""
    """Folder or hub name of the tokenizer, where the one that the checkpoint names can't be reached: `facebook/bart-large`."""

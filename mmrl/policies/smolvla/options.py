"""Options of SmolVLA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mmrl.policies.acting.options import (
    Actions,
    CameraOptions,
    Crop,
    NoiseOptions,
    PromptOptions,
    StatisticsOptions,
    Steps,
    Width,
)


@dataclass(frozen=True, kw_only=True)
class SmolVLAOptions(StatisticsOptions, CameraOptions, PromptOptions, NoiseOptions):
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

    def completed(self, **said: int) -> dict[str, int]:
        """Each of these options, or what the checkpoint says where it is unset. Raises UserError for a checkpoint that says what
        no option may."""
        asked = vars(self)
        found: dict[str, Any] = {name: asked[name] if asked[name] is not None else value for name, value in said.items()}
        replace(self, **found)
        return found

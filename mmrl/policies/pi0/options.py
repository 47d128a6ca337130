"""Options of pi0, pi0.5 and pi0-FAST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mmrl.api.specs import Bounds
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
class Pi0Options(StatisticsOptions, CameraOptions, PromptOptions, NoiseOptions):
    dims: Actions = 7
    """Numbers of an action."""
    chunk: Actions = 10
    """Actions of a call that are carried out, the first of those that the network predicts."""
    state: Width = 0
    """Numbers of the robot's state that is read; 0 reads none. pi0 has a token for it; for pi0.5 it is words of the prompt."""
    steps: Steps = 4
    """Steps of the flow from noise to actions."""
    crop: Crop = 1.0
    """Share of a picture's area around its middle that is kept."""
    resize: Literal["auto", "openpi", "lerobot"] = "auto"
    """How pictures are scaled: `openpi` averages over all pixels, as Pillow does; `lerobot` interpolates between the nearest
    ones, as LeRobot's training does; `auto` is `lerobot` for a checkpoint that LeRobot has saved, else `openpi`."""
    text_tokens: Width = 0
    """Most tokens of the text, whose rest is cut; 0: as the checkpoint says, which in LeRobot's layout is 48 for pi0 and 200 for
    pi0.5, else no limit."""
    layout: Literal["auto", "transformers", "lerobot"] = "auto"
    """Layout of saved folders; `auto` is that of the checkpoint."""
    tokenizer: str = ""
    """Folder or hub name of a tokenizer, where the model has none of its own, such as `google/paligemma-3b-pt-224`."""


@dataclass(frozen=True, kw_only=True)
class Pi05Options(Pi0Options):
    layout: Literal["auto", "lerobot"] = "auto"
    """Layout of saved folders: LeRobot's."""


@dataclass(frozen=True, kw_only=True)
class Pi0FastOptions(StatisticsOptions, CameraOptions, PromptOptions):
    dims: Actions = 7
    """Numbers of an action."""
    chunk: Actions = 10
    """Actions of a call that are carried out, the first of those that its tokens say."""
    state: Width = 0
    """Numbers of the robot's state that is read, as words of the prompt; 0 reads none."""
    crop: Crop = 1.0
    """Share of a picture's area around its middle that is kept."""
    text_tokens: Width = 0
    """Most tokens of the text, whose rest is cut; 0: as the checkpoint says, else 200."""
    action_tokens: Annotated[int, Bounds(low=0, high=4096)] = 0
    """Most tokens of a call, with the one that ends it; 0: as the checkpoint says (`max_decoding_steps`), else 256."""
    vocabulary: Literal["all", "actions"] = "all"
    """What is sampled: `all` tokens, as LeRobot does, the word `Action` before an action too; or those of `actions` and the end
    alone, behind a word that is given."""
    tokenizer: str = ""
    """Folder or hub name of the tokenizer of words, where the model has none of its own, such as `google/paligemma-3b-pt-224`."""
    action_tokenizer: str = ""
    """Folder or hub name of the FAST tokenizer. Empty: the one that lies in the model's folder, else the one that it names."""

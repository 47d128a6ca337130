"""What plugins may ask the engine for: screens, episodes of an expert, models that verifiers look with.

`mmrl.api` imports nothing else of mmrl, so each service is named by "module:name" and imported when it is called.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mmrl.api.simulators.gui import Screens

if TYPE_CHECKING:
    import torch

    from mmrl.api.simulators.types import ActionSpec, Demonstration, TrajectoryData
    from mmrl.api.types import Message

Dtype = Literal["auto", "float32", "bfloat16"]
"""`auto`: bfloat16 on a GPU, float32 elsewhere."""


def screens_of(id: str, options: Mapping[str, Any] | None = None) -> Screens:
    """The screens of a simulator. UserError where there is no such simulator, or it has none."""
    screens: Screens = _engine("mmrl.registry.plugins:registry")().make_screens(id, options)
    return screens


class ExpertEpisodes(Protocol):
    """Episodes of an expert; iterate over them for pairs of a demonstration and the episode's outcome."""

    hz: float
    """Steps in a second of the simulator's world; 0 where it doesn't say."""
    action: ActionSpec | None

    def __iter__(self) -> Iterator[tuple[Demonstration, Mapping[str, float]]]: ...

    def trajectories(self) -> Iterator[tuple[TrajectoryData, Mapping[str, float]]]:
        """The same with the state in which each episode was left."""
        ...

    def close(self) -> None: ...


def expert_episodes(
    id: str, options: Mapping[str, Any], count: int, *, split: str = "demo", environments: int = 16
) -> ExpertEpisodes:
    """The first `count` episodes of a task's split, played by the expert of its simulator: the same that a stage which imitates
    the split would play. environments: how many episodes are played at once.

    Raises UserError where the task has no simulator, or the split has fewer episodes.
    """
    make = _engine("mmrl.rollout.simulators.experts:Episodes")
    episodes: ExpertEpisodes = make(id, options, count, split=split, environments=environments)
    return episodes


class VisionLanguage(Protocol):
    """A vision-language model that verifiers ask. A question is a conversation that ends with the user."""

    def answer_probabilities(self, questions: Sequence[Sequence[Message]], answers: Sequence[str]) -> torch.Tensor:
        """float64 [N, A], rows that sum to 1: how likely each of these words is to begin the answer, among them alone. A word
        counts in lower case and capitalised, with and without a blank before it."""
        ...

    def numbers(self, questions: Sequence[Sequence[Message]], max_tokens: int = 8) -> list[float]:
        """The number that each answer is, which may have a sign; the model can say nothing else."""
        ...


def vision_language(
    model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 16, max_pixels: int | None = None
) -> VisionLanguage:
    """A vision-language model, loaded now, frozen, which answers greedily. model: a folder (also a checkpoint's `policy` in a run
    folder), a hub name, or `tiny`. batch_size: questions answered at once. max_pixels: larger pictures are shrunk.

    Raises UserError with the key `model`.
    """
    make = _engine("mmrl.judge.models:vision_language")
    found: VisionLanguage = make(model, device=device, dtype=dtype, batch_size=batch_size, max_pixels=max_pixels)
    return found


def check_vision_language(model: str, *, device: str = "auto", batch_size: int = 16) -> None:
    """Refuse options with which `vision_language` can't work, without loading the model. A hub name is not looked up."""
    _engine("mmrl.judge.models:check_vision_language")(model, device=device, batch_size=batch_size)


class Contrastive(Protocol):
    """A model such as CLIP that puts pictures and texts into one space."""

    def encode_images(self, pictures: Sequence[Any]) -> torch.Tensor:
        """PIL pictures -> float32 [N, D], each of length 1."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> torch.Tensor:
        """float32 [N, D], each of length 1. UserError for a text that is longer than the model reads."""
        ...


def contrastive(model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 64) -> Contrastive:
    """A contrastive model, loaded now and frozen. model: a folder or hub name of a CLIP or SigLIP checkpoint, or `tiny`.
    batch_size: pictures encoded at once. Raises UserError with the key `model`."""
    make = _engine("mmrl.judge.models:contrastive")
    found: Contrastive = make(model, device=device, dtype=dtype, batch_size=batch_size)
    return found


def check_contrastive(model: str, *, device: str = "auto", batch_size: int = 64) -> None:
    """Refuse options with which `contrastive` can't work, without loading the model. A hub name is not looked up."""
    _engine("mmrl.judge.models:check_contrastive")(model, device=device, batch_size=batch_size)


def _engine(target: str) -> Any:
    module, _, name = target.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))

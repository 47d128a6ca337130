"""Services of mmrl for plugins: GUI screens, episodes of an expert, and models for verifiers.

`mmrl.api` imports no other part of mmrl, so each service is named by "module:name" and imported when it is called.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mmrl.api.simulators.gui import Screens

if TYPE_CHECKING:
    import torch

    from mmrl.api.interfaces import Task
    from mmrl.api.simulators.types import ActionSpec, Demonstration, TrajectoryData
    from mmrl.api.types import Message, Prompt

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""`auto`: bfloat16 on a GPU that has it, float32 elsewhere."""


def screens_of(id: str, options: Mapping[str, Any] | None = None) -> Screens:
    """The screens of a simulator. Raises UserError if there is no such simulator, or it has no screens."""
    screens: Screens = _engine("mmrl.registry.plugins:registry")().make_screens(id, options)
    return screens


def task_of(id: str, options: Mapping[str, Any] | None = None) -> Task:
    """A task of any plugin, for a task that is made of it. Raises UserError for an unknown id and for options that can't work."""
    task: Task = _engine("mmrl.registry.plugins:registry")().make_task(id, options)
    return task


def pairs_of(task: Task, split: str, seed: int) -> Sequence[tuple[Prompt, str, str]]:
    """(prompt, preferred completion, rejected completion) of each prompt of a split, made on access. Raises UserError on access
    for a prompt without a pair."""
    found: Sequence[tuple[Prompt, str, str]] = _engine("mmrl.data.pairs:LazyPairs")(task, split, seed)
    return found


class ExpertEpisodes(Protocol):
    """Episodes of an expert; iterating gives (demonstration, outcome of the episode) pairs."""

    hz: float
    """Steps per simulated second; 0 if unknown."""
    action: ActionSpec | None

    def __iter__(self) -> Iterator[tuple[Demonstration, Mapping[str, float]]]: ...

    def trajectories(self) -> Iterator[tuple[TrajectoryData, Mapping[str, float]]]:
        """The same pairs with the data of each episode, which includes its last state."""
        ...

    def close(self) -> None: ...


def expert_episodes(
    id: str, options: Mapping[str, Any], count: int, *, split: str = "demo", environments: int = 16
) -> ExpertEpisodes:
    """The first `count` episodes of a task's split, played by the expert of its simulator. A stage that imitates the split plays
    the same episodes. environments: how many episodes are played at once.

    Raises UserError if the task has no simulator, or the split has fewer episodes.
    """
    make = _engine("mmrl.rollout.simulators.experts:Episodes")
    episodes: ExpertEpisodes = make(id, options, count, split=split, environments=environments)
    return episodes


class VisionLanguage(Protocol):
    """A vision-language model for verifiers. A question is a conversation that ends with a user message."""

    def answer_probabilities(self, questions: Sequence[Sequence[Message]], answers: Sequence[str]) -> torch.Tensor:
        """float64 [N, A], rows that sum to 1: the probability that the answer begins with each of these words, normalised over
        them. A word counts in lower case and capitalised, with and without a space before it."""
        ...

    def numbers(self, questions: Sequence[Sequence[Message]], max_tokens: int = 8) -> list[float]:
        """Each answer as a number, which may have a sign; decoding is constrained to numbers."""
        ...


def vision_language(
    model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 16, max_pixels: int | None = None
) -> VisionLanguage:
    """Load a frozen vision-language model that answers greedily. model: a folder (also a checkpoint's `policy` in a run folder),
    a hub name, or `tiny`. batch_size: questions answered at once. max_pixels: larger images are shrunk to this number of pixels.

    Raises UserError with the key `model`.
    """
    make = _engine("mmrl.judge.models:vision_language")
    found: VisionLanguage = make(model, device=device, dtype=dtype, batch_size=batch_size, max_pixels=max_pixels)
    return found


def check_vision_language(model: str, *, device: str = "auto", batch_size: int = 16) -> None:
    """Raise UserError for options that `vision_language` can't use, without loading the model or looking up a hub name."""
    _engine("mmrl.judge.models:check_vision_language")(model, device=device, batch_size=batch_size)


class RewardModel(Protocol):
    """A reward model with a scalar head, for verifiers."""

    def rate(self, answered: Sequence[tuple[Sequence[Message], str]]) -> list[float]:
        """The rating of each (conversation that ends with the user, completion); any number."""
        ...


def reward_model(model: str, *, device: str = "auto", max_pixels: int | None = None) -> RewardModel:
    """Load a frozen reward model. model: the `policy` folder of a checkpoint of `policy.kind = "reward"`, or `tiny`. max_pixels:
    larger images are shrunk to this number of pixels. Raises UserError with the key `model`."""
    found: RewardModel = _engine("mmrl.judge.reward_models:reward_model")(model, device=device, max_pixels=max_pixels)
    return found


def check_reward_model(model: str, *, device: str = "auto") -> None:
    """Raise UserError for options that `reward_model` can't use, without loading the model."""
    _engine("mmrl.judge.reward_models:check_reward_model")(model, device=device)


class Contrastive(Protocol):
    """A model such as CLIP that embeds images and texts in one space."""

    def encode_images(self, pictures: Sequence[Any]) -> torch.Tensor:
        """PIL images -> float32 [N, D], each row of length 1."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> torch.Tensor:
        """float32 [N, D], each row of length 1. Raises UserError for a text that is too long for the model."""
        ...


def contrastive(model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 64) -> Contrastive:
    """Load a frozen contrastive model. model: a folder or hub name of a CLIP or SigLIP checkpoint, or `tiny`.
    batch_size: images encoded at once. Raises UserError with the key `model`."""
    make = _engine("mmrl.judge.models:contrastive")
    found: Contrastive = make(model, device=device, dtype=dtype, batch_size=batch_size)
    return found


def check_contrastive(model: str, *, device: str = "auto", batch_size: int = 64) -> None:
    """Raise UserError for options that `contrastive` can't use, without loading the model or looking up a hub name."""
    _engine("mmrl.judge.models:check_contrastive")(model, device=device, batch_size=batch_size)


class ImageEncoder(Protocol):
    """A vision transformer, such as DINOv2, that embeds images."""

    def encode(self, pictures: Sequence[Any]) -> torch.Tensor:
        """PIL images -> float32 [N, D], each row of length 1: the mean of the last hidden states."""
        ...


def image_encoder(model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 64) -> ImageEncoder:
    """Load a frozen vision transformer. model: a folder or hub name, such as of a DINOv2, or `tiny`. batch_size: images at once.
    Raises UserError with the key `model`."""
    make = _engine("mmrl.judge.image_models:image_encoder")
    found: ImageEncoder = make(model, device=device, dtype=dtype, batch_size=batch_size)
    return found


def check_image_encoder(model: str, *, device: str = "auto", batch_size: int = 64) -> None:
    """Raise UserError for options that `image_encoder` can't use, without loading the model or looking up a hub name."""
    _engine("mmrl.judge.image_models:check_image_encoder")(model, device=device, batch_size=batch_size)


class PairClassifier(Protocol):
    """A sequence classification model of pairs of texts: of entailment, a reranker or a reward model."""

    def agreement(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """0..1 for each pair: the probability of the class `entailment`, or the sigmoid of the only output."""
        ...

    def ratings(self, answered: Sequence[tuple[str, str]]) -> list[float]:
        """The only output for each (question, answer); any number. Raises UserError for a model with classes."""
        ...


def pair_classifier(model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 32) -> PairClassifier:
    """Load a frozen sequence classification model. model: a folder, a hub name, or `tiny`. batch_size: pairs at once. Raises
    UserError with the key `model`."""
    make = _engine("mmrl.judge.text_models:pair_classifier")
    found: PairClassifier = make(model, device=device, dtype=dtype, batch_size=batch_size)
    return found


def check_pair_classifier(model: str, *, device: str = "auto", batch_size: int = 32) -> None:
    """Raise UserError for options that `pair_classifier` can't use, without loading the model or looking up a hub name."""
    _engine("mmrl.judge.text_models:check_pair_classifier")(model, device=device, batch_size=batch_size)


def token_decoder(model: str) -> Callable[[Sequence[int]], str]:
    """Token ids of a policy that writes -> their text without special tokens, as `Turn.text` has it. model: the policy's folder,
    hub name, or `tiny`; no weights are read. Raises UserError with the key `model`."""
    found: Callable[[Sequence[int]], str] = _engine("mmrl.judge.text_models:token_decoder")(model)
    return found


def _engine(target: str) -> Any:
    module, _, name = target.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))

"""An open task: its prompts, and the judge for its completions."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmrl.api.cases import with_turns
from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.errors import PluginError, UserError, did_you_mean
from mmrl.api.interfaces import Simulator, Task
from mmrl.api.serving import Episode, Prompts
from mmrl.api.specs import SimulatorSpec
from mmrl.api.types import Case, Prompt, Score, Status, Turn
from mmrl.data.prompts import Indexable, gold_completion, load_prompts, max_broken, prompt_at
from mmrl.judge import Isolation, Judge
from mmrl.registry import plugins
from mmrl.rollout.environments import has_environment
from mmrl.serving.episodes import OpenEpisode, with_reward
from mmrl.serving.scoring import OpenedVerifiers, judge_of

PLACE = "mmrl_place"
"""Key in the meta of a prompt without its answer: [split, seed, index]."""

Sizes = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
"""(width, height) of each image, and of each as the model sees it."""


def open_task(
    id: str,
    options: Mapping[str, Any],
    *,
    model: str | ImageProcessing | None,
    frame: str | None,
    min_pixels: int | None,
    max_pixels: int | None,
    trust_remote_code: bool,
    verifiers: Mapping[str, float],
    verifier_options: Mapping[str, Mapping[str, Any]],
    num_workers: int,
    timeout_s: float | None,
    memory_mb: int | None,
    isolation: Isolation,
) -> OpenedTask:
    """See `mmrl.api.serving.open_task`."""
    registry = plugins.registry()
    spec = registry.get("tasks", id)
    task = registry.build_task(spec, options)
    weights = dict(verifiers or ({task.scored_by: 1.0} if task.scored_by else spec.verifiers))
    if not weights:
        raise UserError(f'task {id!r} names no verifiers: give some, verifiers={{"plugin/name": 1.0}}')
    metric = spec.metric if spec.metric in weights else next(iter(weights))
    judge = judge_of(weights, verifier_options, num_workers, timeout_s, memory_mb, isolation)
    if isinstance(model, ImageProcessing):
        task.image_processing = model
    elif model is not None or frame is not None:
        task.image_processing = _image_processing(model, frame, min_pixels, max_pixels, trust_remote_code)
    return OpenedTask(spec.id, task, weights, verifier_options, metric, judge, model, trust_remote_code)


def _image_processing(
    model: str | None, frame: str | None, min_pixels: int | None, max_pixels: int | None, trusted: bool
) -> ImageProcessing:
    formats = [str(name) for name in CoordinateFormat]
    if frame is not None and frame not in formats:
        raise UserError(f"frame = {frame!r:.60} is unknown.{did_you_mean(str(frame), formats)} Known: {', '.join(formats)}")
    if model is None and frame is not None:
        if frame == CoordinateFormat.MODEL_PIXELS:
            raise UserError("frame = 'model-pixels' depends on how the model resizes images: give model=, its folder or hub name")
        return ImageProcessing(CoordinateFormat(frame))
    assert model is not None, "one of both is given"
    from mmrl.policies.vlm.image_processing import image_processing_of  # imports torch

    return image_processing_of(model, frame, min_pixels, max_pixels, trusted)


class OpenedTask(OpenedVerifiers):
    """See `mmrl.api.serving.OpenTask`."""

    def __init__(
        self,
        id: str,
        task: Task,
        weights: Mapping[str, float],
        options: Mapping[str, Mapping[str, Any]],
        metric: str,
        judge: Callable[[], Judge],
        model: str | ImageProcessing | None = None,
        trusted: bool = False,
    ) -> None:
        """options: of verifiers. judge: makes the judge. model, trusted: see `mmrl.open_task`."""
        super().__init__(weights, options, judge)
        self._model, self._trusted = model, trusted
        self.id, self.task, self.metric = id, task, metric
        self.splits: Sequence[str] = tuple(task.splits)
        self.image_processing = task.image_processing
        self.multi_turn, self.acts = has_environment(task), task.simulation is not None
        self._splits: dict[tuple[str, int], Indexable] = {}
        self._seen: tuple[Prompt | None, Sizes] = (None, ((), ()))

    @functools.cached_property
    def opening(self) -> str:
        if not isinstance(self._model, str):
            return ""
        from mmrl.policies.vlm.image_processing import opening_of  # imports torch

        return opening_of(self._model, self._trusted)

    def prompts(self, split: str = "train", seed: int = 0, *, answers: bool = True) -> Prompts:
        return OpenedPrompts(self.id, self._items(split, seed), None if answers else (split, operator.index(seed)))

    def gold(self, prompt: Prompt) -> str:
        return gold_completion(self.task, self._with_answer(prompt))

    def case(
        self,
        prompt: Prompt,
        completion: str,
        *,
        status: Status | str = Status.FINISHED,
        turns: Sequence[Turn] = (),
        outcome: Mapping[str, float] | None = None,
    ) -> Case:
        image_sizes, model_sizes = self._sizes(prompt)
        for turn in turns:
            image_sizes, model_sizes = _added((image_sizes, model_sizes), self._sizes(Prompt(messages=turn.messages)))
        prompt = self._with_answer(prompt)
        case = Case(
            completion=completion,
            answer=prompt.answer,
            meta=prompt.meta,
            status=Status(status),
            media=prompt.images,
            image_sizes=image_sizes,
            model_sizes=model_sizes,
            coordinate_format=self._written(),
            outcome=dict(outcome or {}),
        )
        return with_turns(case, turns, prompt.messages, self.id, prompt.id) if turns else case

    def episode(self, prompt: Prompt, max_turns: int = 8) -> Episode:
        if self.acts:
            raise UserError(f"task {self.id!r} acts in a simulator and has no turns of text: use simulator()")
        return OpenEpisode(self, self._with_answer(prompt), max_turns)

    def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        scores = self.score([episode.case() for episode in episodes])
        return [with_reward(score, episode.reward) for score, episode in zip(scores, episodes, strict=True)]

    def simulator(self, num_envs: int, device: str = "cpu") -> Simulator:
        if self.task.simulation is None:
            raise UserError(f"task {self.id!r} is answered in words and has no simulator: use episode() or score()")
        return plugins.registry().make_simulator(self.task.simulation, num_envs, device)

    @property
    def simulator_spec(self) -> SimulatorSpec:
        simulation = self.task.simulation
        if simulation is None or not simulation.simulator:
            raise UserError(f"task {self.id!r} has no simulator: use episode() or score()")
        return plugins.registry().get("simulators", simulation.simulator)

    def _items(self, split: str, seed: int) -> Indexable:
        with self._lock:
            if (split, seed) not in self._splits:
                self._splits[split, seed] = load_prompts(self.id, self.task, split, seed)
            return self._splits[split, seed]

    def _with_answer(self, prompt: Prompt) -> Prompt:
        if PLACE not in prompt.meta:
            return prompt
        match prompt.meta[PLACE]:
            case [str(split), int(seed), int(index)] if 0 <= index < len(self._items(split, seed)):
                return prompt_at(self._items(split, seed), index, self.id)
        raise UserError(f"prompt {prompt.id!r} has the place {prompt.meta[PLACE]!r:.60}, which task {self.id!r} hasn't")

    def _sizes(self, prompt: Prompt) -> Sizes:
        """(sizes of a prompt's images, their sizes for the model). The last prompt's are kept: a group's cases come together."""
        seen, sizes = self._seen
        if seen is not prompt and prompt.images:
            from mmrl.api.media.images import load_image

            found = tuple(load_image(image).size for image in prompt.images)
            sizes = found, tuple(map(self.image_processing.model_size, found))
            self._seen = (prompt, sizes)
        return sizes if prompt.images else ((), ())

    def _written(self) -> CoordinateFormat:
        try:
            return self.image_processing.coordinate_format
        except UserError:  # of a family that isn't known: a task with coordinates has refused it when it made its prompts
            return CoordinateFormat.PIXELS


def _added(these: Sizes, more: Sizes) -> Sizes:
    return (*these[0], *more[0]), (*these[1], *more[1])


class OpenedPrompts:
    """See `mmrl.api.serving.Prompts`."""

    def __init__(self, label: str, items: Indexable, hidden: tuple[str, int] | None) -> None:
        """hidden: split and seed, if the answers are hidden."""
        self._label, self._items, self._hidden = label, items, hidden

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Prompt:
        index = operator.index(index)  # a place has plain data, and a program may count in NumPy's numbers
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {self._label!r} has {len(self)} prompts in this split, and no number {index}")
        index %= len(self)
        prompt = prompt_at(self._items, index, self._label)
        return replace(prompt, answer=None, meta={PLACE: [*self._hidden, index]}) if self._hidden else prompt

    def __iter__(self) -> Iterator[Prompt]:
        return (prompt for _, prompt in self.items())

    def items(self) -> Iterator[tuple[int, Prompt]]:
        broken: list[str] = []
        for index in range(len(self)):
            try:
                prompt = self[index]
                _open_images(prompt)
            except PluginError:
                raise
            except UserError as error:
                broken.append(f"item {index}: {error}")
                if len(broken) > max_broken(index + 1, len(self)):
                    raise UserError(
                        f"task {self._label!r}: {len(broken)} of {index + 1} prompts are broken: fix or remove them; the last: "
                        f"{broken[-1]}"
                    ) from None
                continue
            yield index, prompt
        if broken:
            warnings.warn(f"task {self._label!r}: left out {len(broken)} prompts; the first: {broken[0]}", stacklevel=2)


def _open_images(prompt: Prompt) -> None:
    """Raise UserError for a prompt whose images can't be used."""
    from mmrl.api.media.images import load_image

    for image in prompt.images:
        if isinstance(image, str | bytes) or hasattr(image, "__fspath__"):
            load_image(image)

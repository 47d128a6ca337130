"""Tasks for other programs: open one, read its prompts, score completions, play episodes. `mmrl.open_task` is the way in.

Adapters to other trainers (the plugin `interop`) use this module and nothing else of mmrl. It is stable: what is here keeps its
name and meaning within a minor version, see CONTRIBUTING.md.

`mmrl.api` imports no other part of mmrl, so these are interfaces; `mmrl.serving` implements them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, overload

from mmrl.api.coordinates import ImageProcessing
from mmrl.api.interfaces import Simulator, Task
from mmrl.api.specs import SimulatorSpec
from mmrl.api.types import Case, Message, Prompt, Reply, Score, Status, Turn


class Prompts(Protocol):
    """The prompts of a split: `len`, `[index]` and iteration. Each is made when it is asked for.

    `[index]` raises UserError for a prompt that can't be made. Iteration leaves out such prompts, and those with a broken image,
    with a warning, and raises UserError if too many are broken, as a run does."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Prompt: ...

    def __iter__(self) -> Iterator[Prompt]: ...

    def items(self) -> Iterator[tuple[int, Prompt]]:
        """(index, prompt) of the prompts that iteration gives."""
        ...


class Episode(Protocol):
    """One episode of a prompt in the task's environment (`mmrl.Environment`): reset, step, done. Made by `OpenTask.episode`.

    An episode of a task without environments is over after its first turn. Use it as a context manager, or call `close`."""

    prompt: Prompt
    messages: Sequence[Message]
    """What the policy reads before its next turn: at first the prompt's messages, then those of the last reply."""
    done: bool
    """The episode is over: by itself, by the limit of turns, or because its environment failed."""
    status: Status
    """How it ended, so far `finished`."""
    reward: float
    """The sum of the environment's rewards so far; the judge's score is not in it."""
    turns: Sequence[Turn]
    """The turns so far."""
    failure: str
    """Why its environment failed; empty if it didn't."""

    def step(self, completion: str, tokens: int | None = None) -> Reply:
        """Play a turn. tokens: number of sampled tokens, for verifiers that look at the length; by default words are counted.

        An environment that fails ends the episode with the status `environment-error`, and its score is lost. Raises UserError
        if the episode is over, and PluginError for a wrong reply."""
        ...

    async def step_async(self, completion: str, tokens: int | None = None) -> Reply:
        """`step` in a thread, since an environment may wait for a browser or another process."""
        ...

    def gold_turn(self) -> str | None:
        """A correct next turn; None if the task doesn't know one."""
        ...

    def case(self) -> Case:
        """The episode as verifiers get it."""
        ...

    def score(self) -> Score:
        """The judge's score of the episode, with the environment's rewards added as the part `environment`. A missing score
        (`value` None) is missing, whatever the environment gave."""
        ...

    async def score_async(self) -> Score:
        """`score` without blocking the event loop."""
        ...

    def close(self) -> None:
        """Close the environment; may be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Scoring(Protocol):
    """Verifiers that are open for another program: made by `open_verifiers`. Use it as a context manager, or call `close`.

    It may be used from several threads and event loops. Worker processes start with the first score, or with `ready`."""

    verifiers: Mapping[str, float]
    """Verifier id -> weight; the reward is the weighted sum."""
    verifier_options: Mapping[str, Mapping[str, Any]]
    """Verifier id -> its options, where some were given."""
    needs_images: bool
    """One of them reads the images of a case; otherwise a stored case can do without."""
    needs_turns: bool
    """One of them reads the turns of a case, such as their number of tokens."""

    @property
    def value_range(self) -> tuple[float, float]:
        """The smallest and the largest value of a score that is expected. Raises UserError for wrong options of a verifier."""

    @overload
    def score(self, cases: Case) -> Score: ...
    @overload
    def score(self, cases: Sequence[Case]) -> list[Score]: ...
    def score(self, cases: Case | Sequence[Case]) -> Score | list[Score]:
        """The judge's score of a case, or of each of several: the weighted sum of the verifiers, which run in worker processes
        with their deadlines.

        `Score.value` is None if a verifier with a weight failed, hung, or returned no number, and `Score.lost` is set if the
        episode's environment failed; `Score.detail` says why. Such a score is missing and must not be taken for 0. Raises
        UserError if a verifier can't be loaded."""
        ...

    @overload
    async def score_async(self, cases: Case) -> Score: ...
    @overload
    async def score_async(self, cases: Sequence[Case]) -> list[Score]: ...
    async def score_async(self, cases: Case | Sequence[Case]) -> Score | list[Score]:
        """`score` without blocking the event loop."""
        ...

    def ready(self) -> None:
        """Wait until worker processes have loaded all verifiers. Raises UserError if that fails."""
        ...

    def close(self) -> None:
        """Stop the worker processes; may be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class OpenTask(Scoring, Protocol):
    """A task that is open for another program: made by `open_task`. Its verifiers are open, too."""

    id: str
    task: Task
    """The task itself, for `gold`, `overlays` and the like."""
    splits: Sequence[str]
    metric: str
    """Id of the verifier that evaluates the task."""
    image_processing: ImageProcessing
    """How the model sees images and writes coordinates; the prompts ask for these."""
    multi_turn: bool
    """Its episodes may have more than one turn: play them with `episode`."""
    acts: bool
    """It acts in a simulator: its prompts have no messages, and `simulator` makes the environments."""

    @property
    def opening(self) -> str:
        """What the chat template of `model` writes of each answer: the `<think>` of a model that thinks; empty for others, and
        without a model. Completions that verifiers and environments get should begin with it."""

    def prompts(self, split: str = "train", seed: int = 0, *, answers: bool = True) -> Prompts:
        """The prompts of a split, the same on every machine. Images are PIL images or paths, see `mmrl.Message`.

        answers: with False, `answer` is None and `meta` holds only the prompt's place in the split, from which `case` finds the
        answer again: for data that leave this machine. Raises UserError for an unknown or empty split."""
        ...

    def gold(self, prompt: Prompt) -> str:
        """A completion that deserves the highest score. Raises `mmrl.NoGold` if the task knows none."""
        ...

    def case(
        self,
        prompt: Prompt,
        completion: str,
        *,
        status: Status | str = Status.FINISHED,
        turns: Sequence[Turn] = (),
        outcome: Mapping[str, float] | None = None,
    ) -> Case:
        """The case that verifiers judge: a completion with the prompt's answer, and the sizes of its images for the model.

        status: `truncated-length` if the completion was cut off. turns: of a conversation, see `mmrl.api.cases.make_turn`.
        outcome: of an episode, such as {"success": 1.0}."""
        ...

    def episode(self, prompt: Prompt, max_turns: int = 8) -> Episode:
        """A new episode of this prompt. max_turns: turns after which it is truncated. Raises UserError for a task that acts in a
        simulator, and `mmrl.EnvironmentFailed` if the environment can't be made."""
        ...

    def score_episodes(self, episodes: Sequence[Episode]) -> list[Score]:
        """`Episode.score` of several episodes at once."""
        ...

    @property
    def simulator_spec(self) -> SimulatorSpec:
        """The spec of its simulator: cameras, action space, limits. Raises UserError for a task without one."""
        ...

    def simulator(self, num_envs: int, device: str = "cpu") -> Simulator:
        """The simulator of a task that `acts`, with N environments. Raises UserError for other tasks."""
        ...


def open_task(
    id: str,
    options: Mapping[str, Any] | None = None,
    *,
    model: str | ImageProcessing | None = None,
    frame: str | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    trust_remote_code: bool = False,
    verifiers: Mapping[str, float] | None = None,
    verifier_options: Mapping[str, Mapping[str, Any]] | None = None,
    num_workers: int = 1,
    timeout_s: float | None = None,
    memory_mb: int | None = 512,
    isolation: Literal["process", "strict"] = "process",
) -> OpenTask:
    """Open an installed task for another program.

    id, options: as in `[[tasks]]` of a run file; `mmrl list tasks ID` shows the options.
    model: the model that will answer: a folder or hub name, of which the config and the processor are read and no weights, or
        `tiny:FAMILY`. Prompts then ask for the coordinates that it writes, and cases have the sizes in which it sees images. Or
        the `mmrl.ImageProcessing` itself. None: coordinates are pixels of the original image.
    frame: the format of coordinates of a model of an unknown family, or without `model`: `pixels`, `thousandths`, `unit`, or
        `model-pixels`, which needs a model.
    min_pixels, max_pixels, trust_remote_code: as in `[policy]` of a run file, for the model's processor.
    verifiers: verifier id -> weight; by default the task's own. verifier_options: verifier id -> options.
    num_workers, timeout_s, memory_mb, isolation: as in `[judge]` of a run file, see docs/isolation.md.

    Raises UserError for an unknown id, wrong options, and a model that can't be read. Of verifiers, ids and options are checked
    when the workers start.
    """
    opened: OpenTask = importlib.import_module("mmrl.serving.tasks").open_task(
        id,
        options or {},
        model=model,
        frame=frame,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        trust_remote_code=trust_remote_code,
        verifiers=verifiers or {},
        verifier_options=verifier_options or {},
        num_workers=num_workers,
        timeout_s=timeout_s,
        memory_mb=memory_mb,
        isolation=isolation,
    )
    return opened


def open_verifiers(
    verifiers: Mapping[str, float],
    *,
    verifier_options: Mapping[str, Mapping[str, Any]] | None = None,
    num_workers: int = 1,
    timeout_s: float | None = None,
    memory_mb: int | None = 512,
    isolation: Literal["process", "strict"] = "process",
) -> Scoring:
    """Open verifiers without a task, to score cases that were stored with their answers (`mmrl.api.cases`). verifiers: id ->
    weight; the other arguments are those of `open_task`. Raises UserError for unknown ids."""
    opened: Scoring = importlib.import_module("mmrl.serving.scoring").open_verifiers(
        verifiers,
        verifier_options=verifier_options or {},
        num_workers=num_workers,
        timeout_s=timeout_s,
        memory_mb=memory_mb,
        isolation=isolation,
    )
    return opened

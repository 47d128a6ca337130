"""The interfaces that a plugin implements: Task, Verifier, Environment, Simulator, Expert and Tracker."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from mmrl.api.coordinates import ImageProcessing
from mmrl.api.errors import NoPair
from mmrl.api.tasks.overlays import Overlay, ground_truth_overlays
from mmrl.api.types import Case, Prompt, Reply, Rollout, Score
from mmrl.api.verifiers.parse import without_thinking

if TYPE_CHECKING:
    import torch

    from mmrl.api.simulators.types import Demonstration, Observation, Simulation, Transition


class Task:
    """A source of prompts. Subclass it and define `prompts`; the task's options in the run file are the keyword arguments of
    `__init__`.

    Example::

        class Country(Task):
            '''Which country's flag is shown.'''

            def prompts(self, split, seed):
                for path, name in FLAGS[split]:
                    yield Prompt(id=name, messages=[user_message("Which country's flag is this?", path)], answer=name)
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    """The splits that `prompts` knows. Items of different splits never overlap."""
    held_out: ClassVar[tuple[str, ...]] = ()
    """Splits that are only for evaluation, such as a published benchmark: a stage that trains on one is refused."""
    image_processing: ImageProcessing = ImageProcessing()
    """How the policy sees images and writes coordinates; mmrl sets it before it reads prompts. A task with coordinates states
    the format in its prompts and uses it in `gold`, see `mmrl.api.coordinates.convert_coordinates`."""

    simulation: Simulation | None = None
    """How episodes are simulated, for a task that acts in a simulator. Its prompts have no messages; each stands for the initial
    state drawn from `Prompt.seed`, in the variant `meta["variant"]` if given. None for tasks that are answered with text."""

    def prompts(self, split: str, seed: int) -> Iterable[Prompt]:
        """The prompts of a split: any iterable, preferably a sequence (`len` and `[i]`) that makes its items on access.

        The same split and seed give the same items, in the same order, on every machine.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prompts(split, seed)")

    def prompt_sets(self, split: str, seed: int) -> Sequence[Hashable] | None:
        """The set of each of these prompts, in their order, where `summarise` has a figure of whole sets, such as all questions
        about a picture: an evaluation draws whole sets. None, the default: it draws single prompts."""
        return None

    def gold(self, prompt: Prompt) -> str:
        """A completion that deserves the highest score; SFT imitates it and `mmrl check` scores it. By default the answer. A task
        that knows no correct completion raises `mmrl.NoGold`; it can still be trained with its rewards."""
        return str(prompt.answer)

    def pair(self, prompt: Prompt) -> tuple[str, str]:
        """(preferred completion, rejected completion), two different texts, for `preference` stages. By default a task has no
        pairs. Raise UserError for a prompt without a pair: it is left out and counted."""
        raise NoPair(f"{type(self).__name__} has no pair()")

    def extract_answer(self, completion: str) -> str:
        """The answer in a completion, for votes over several completions: majority@k and training without labels. By default the
        text of its last `<answer>` tag, or else all that stands behind the thinking, stripped and in lower case; blank if the
        thinking doesn't end."""
        said = without_thinking(completion)
        start = said.rfind("<answer>")
        text = said[start + len("<answer>") :].partition("</answer>")[0] if start >= 0 else said
        return text.strip().lower()

    def demonstration(self, prompt: Prompt) -> Demonstration | None:
        """The demonstration for a prompt, in a task that acts in a simulator and has its own data. By default None: then the
        simulator's expert demonstrates. Raise UserError for data that can't be used: the prompt is left out and counted."""
        return None

    def recorded_episodes(self, most: int) -> Iterable[Demonstration]:
        """Whole episodes with what was paid (`rewards_T`), at most so many, in a task that acts in a simulator and has its own
        data: a stage that learns from a memory reads them with `offline = "recorded"`. By default none. Raise UserError for data
        that can't be used."""
        return ()

    def hint(self, prompt: Prompt, share: float) -> str:
        """A hint for this prompt: by default the first `share` (0 to 1) of its gold completion's words."""
        words = self.gold(prompt).split()
        return " ".join(words[: max(1, round(share * len(words)))])

    def rephrase(self, prompt: Prompt) -> Prompt | None:
        """The same question in other words or with changed images, for Co-Reward; None by default."""
        return None

    def environment(self, prompt: Prompt) -> Environment | None:
        """A new environment for one episode of this prompt; by default None: the first answer ends the episode."""
        return None

    def draw_completion(self, prompt: Prompt, completion: str) -> Any:
        """The image that a completion draws, as a PIL image, for previews and reports; None if it draws none."""
        return None

    def draw_episode(self, rollout: Rollout) -> Any:
        """An image of a whole episode, for reports; by default the image that its last completion draws."""
        return self.draw_completion(rollout.prompt, rollout.completion)

    def overlays(self, prompt: Prompt, completion: str) -> Sequence[Overlay]:
        """Overlays on the prompt's images, for previews and reports: the ground truth and the prediction in a completion (of
        several turns, the last). A completion that can't be parsed adds none. By default the ground-truth boxes and points of
        `meta`."""
        return ground_truth_overlays(prompt, self.image_processing)

    def episode_overlays(self, rollout: Rollout) -> Sequence[Overlay]:
        """Overlays on the prompt's images of a whole episode, such as where the policy looked in each of its turns; by default
        those of its last completion."""
        return self.overlays(rollout.prompt, rollout.completion)

    @property
    def scored_by(self) -> str:
        """Id of the verifier that scores what the task's options ask for, where those of its spec don't: previews take it, and
        programs that name none. By default empty: the spec's."""
        return ""

    def check_verifiers(self, verifiers: Collection[str]) -> None:
        """Raise UserError for options with which the task asks for what these verifiers don't score, before a run starts.
        verifiers: ids of those that reward and evaluate it."""

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Metrics of one evaluation besides its mean, such as a harmonic mean over kinds of items; none by default.

        results: (prompt, score) pairs."""
        return {}

    def summarise_parts(self, parts: Mapping[str, list[tuple[Prompt, float]]]) -> dict[str, float]:
        """Metrics of the parts of one evaluation's scores, besides their means, such as a mean over episodes; none by default. A
        metric `f1/macro` is reported as `part/f1/macro`.

        parts: name of a verifier's part -> pairs of a prompt and the mean of this part over its answers that have it."""
        return {}


class Verifier(Protocol):
    """A pure function from a case to a reward. It may raise: the judge handles time limits, processes and failures."""

    def __call__(self, case: Case, **options: Any) -> float | Score: ...


@runtime_checkable
class Environment(Protocol):
    """The environment of one episode (a game, a browser, a renderer): it replies to the policy's turns. `Task.environment` makes
    one for each episode.

    Example::

        class Guess:
            def __init__(self, number):
                self.number = number

            def step(self, completion):
                if completion.strip() == str(self.number):
                    return Reply(terminated=True)
                return Reply(messages=[user_message("No. Guess again.")])

            def close(self):
                pass

    An environment that mostly waits (for a browser, for another process) sets the attribute `waits = True`: it is then stepped in
    a thread, in parallel with others. An optional method `gold_turn() -> str | None` returns a correct next turn, for
    demonstrations of several turns. Another, `state_name() -> str | None`, names the state in which the next turn begins, so that
    `gigpo` knows it again: by default two states are the same if what the policy sees in them is. A third, `truncate() -> Reply`,
    is called where the episode ends for lack of turns or tokens: its reward is added to that of the last turn, and its outcome is
    the episode's. An environment that fails raises `mmrl.EnvironmentFailed`, and its episode is left out."""

    def step(self, completion: str) -> Reply:
        """The reply to a turn. completion: the text of the turn."""
        ...

    def close(self) -> None:
        """Free everything: the episode has terminated or was truncated."""
        ...


@runtime_checkable
class Simulator(Protocol):
    """N environments in lock-step, tensors on one device. Its spec's target is called as `target(num_envs=, device=, **options)`.

    It never resets itself, and its randomness comes from the seeds alone, never from a global generator: an environment that is
    reset with the same seed and gets the same actions does the same, whatever N, its index and the other environments are.

    `snapshot`, `restore` and `render` are only called where the spec has the capability, and may be missing elsewhere.
    """

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """Start these environments, or all, each from its seed (int64), and return their n observations.

        variant: a changed environment that a policy should cope with, one of the spec's `variants`; None is the environment that
        policies are trained in.
        """
        ...

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """One step of the active environments (bool); the others stay as they are, bit for bit. actions_NA: float32.

        Raises UserError for actions of a wrong shape or active ones that are NaN.
        """
        ...

    def snapshot(self, env_ids_n: torch.Tensor) -> Any:
        """The whole state of these environments, which later steps don't change."""
        ...

    def restore(self, env_ids_n: torch.Tensor, state: Any) -> Observation:
        """Put n environments into the n states of a snapshot of this or another instance, and return their observations."""
        ...

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """Images for people, uint8 [n, H, W, 3]."""
        ...

    def close(self) -> None:
        """Free everything; may be called twice."""
        ...


@runtime_checkable
class Expert(Protocol):
    """A simulator with the capability `expert`: it has its own policy for its tasks, for demonstrations."""

    def expert(self) -> torch.Tensor:
        """The expert's next action in each environment: float32 [N, A], within [-1, 1]."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """Logs metrics to a place other than the run folder. It is made once per run and imports heavy packages in `start`. Its
    exceptions are reported and don't end the run."""

    def start(self, *, name: str, folder: Path, config: Mapping[str, Any], project: str, step: int) -> None:
        """The run starts or is resumed.

        name: the run's name. folder: the run folder, for files and ids that a resume needs. config: the resolved run file as
        plain data. project: the project to log the run under. step: 0 at the beginning, or the step after which a resumed run
        continues: metrics of later steps are logged again."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step, all finite. A step may be logged more than once, with other names."""

    def finish(self, status: str) -> None:
        """The run ended. status: `finished`, `stopped` (by the user) or `failed`."""


@runtime_checkable
class RolloutTracker(Tracker, Protocol):
    """A tracker that shows completions, too."""

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show the completions of a step that the run folder holds, at the pace of `record.rollouts_every`.

        rows: all have the same keys: `image`, `image 2`, ... (the path of a picture in the run folder, PNG or WebP, or None), as
        many as the row with most has; `task`, `prompt_id`, `prompt`, `answer`, `completion`, `reward` and `advantage` (None where
        scoring failed), each verifier's id (what it gave, or None), `status` and `source`."""


class RunInfo(Protocol):
    """The description of a run that the run hooks get."""

    path: Path
    """The run folder; `docs/run-folder.md` describes its files."""

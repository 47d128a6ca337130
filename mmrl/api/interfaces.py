"""What a plugin implements: Task, Verifier, Simulator, World, Tracker; and what the engine asks of a Policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from mmrl.api.coordinates import ImageProcessing
from mmrl.api.tasks.overlays import Overlay, ground_truth_overlays
from mmrl.api.types import Case, Prompt, Reply, Rollout, Score

if TYPE_CHECKING:
    import torch

    from mmrl.api.simulators.types import Demonstration, Observation, Simulation, Transition


class Task:
    """A source of problems. Subclass it and write `prompts`; options of the run file arrive as keyword arguments
    of `__init__`.

    Example::

        class Country(Task):
            '''Which country's flag is shown.'''

            def prompts(self, split, seed):
                for path, name in FLAGS[split]:
                    yield Prompt(id=name, messages=[user("Which country's flag is this?", path)], answer=name)
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    """The splits that `prompts` knows. Items of different splits never overlap."""
    image_processing: ImageProcessing = ImageProcessing()
    """How the policy sees pictures and writes coordinates; the engine sets it before it asks for a prompt. A task with
    coordinates names the frame in its prompts and keeps to it in `gold`, see `mmrl.api.coordinates.convert_coordinates`."""

    simulation: Simulation | None = None
    """How episodes are simulated, in a task that acts in a simulator: its prompts have no messages, each is the start that
    `Prompt.seed` draws, in the variant `meta["variant"]` if there is one. None for tasks that are answered in words."""

    def prompts(self, split: str, seed: int) -> Iterable[Prompt]:
        """The problems of a split: any iterable, best a sequence (`len` and `[i]`) whose items are made when asked for.

        The same split and seed give the same items, in the same order, on every machine.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prompts(split, seed)")

    def gold(self, prompt: Prompt) -> str:
        """A completion that deserves the highest score: what SFT imitates and `mmrl check` scores. By default the answer. A task
        that can't say what would be right raises `mmrl.NoGold`: it can be trained by its rewards all the same."""
        return str(prompt.answer)

    def extract_answer(self, completion: str) -> str:
        """The answer that a completion gives, for votes among several: majority@k and training without labels. By default the
        text of its last `<answer>` tag, or else all of it; without outer blanks, in lower case."""
        start = completion.rfind("<answer>")
        text = completion[start + len("<answer>") :].partition("</answer>")[0] if start >= 0 else completion
        return text.strip().lower()

    def demonstration(self, prompt: Prompt) -> Demonstration | None:
        """What is to be imitated in the start or the moment that a prompt stands for, in a task that acts and has data of its
        own. By default there is nothing: the simulator's expert shows it. UserError for data that can't be used: the prompt is
        left out, and counted."""
        return None

    def hint(self, prompt: Prompt, share: float) -> str:
        """What a hint for this prompt says: by default the first `share` (0 to 1) of its gold completion's words."""
        words = self.gold(prompt).split()
        return " ".join(words[: max(1, round(share * len(words)))])

    def rephrase(self, prompt: Prompt) -> Prompt | None:
        """The same question in other words or with the pictures changed, for Co-Reward; by default there is none."""
        return None

    def environment(self, prompt: Prompt) -> Environment | None:
        """What answers to the policy's turns in an episode of this prompt, fresh for each; by default an answer ends it."""
        return None

    def draw_completion(self, prompt: Prompt, completion: str) -> Any:
        """The picture that a completion draws, a PIL image, for previews and reports; None where it draws none."""
        return None

    def draw_episode(self, rollout: Rollout) -> Any:
        """The picture of a whole episode, for reports; by default what its last completion draws."""
        return self.draw_completion(rollout.prompt, rollout.completion)

    def overlays(self, prompt: Prompt, completion: str) -> Sequence[Overlay]:
        """What is drawn over the prompt's pictures, for previews and reports: what is true there, and what a completion says, of
        several turns the last. One that says nothing that can be read adds nothing. By default the true boxes and points of
        `meta`."""
        return ground_truth_overlays(prompt, self.image_processing)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Figures over one evaluation beside its mean, such as a harmonic mean over kinds of items; by default none."""
        return {}


class Verifier(Protocol):
    """A pure function from a case to a reward. It may raise: the judge owns time, processes and failure."""

    def __call__(self, case: Case, **options: Any) -> float | Score: ...


@runtime_checkable
class Environment(Protocol):
    """What answers to a policy's turns (a game, a browser, a renderer), in one episode. `Task.environment` makes one for each.

    Example::

        class Guess:
            def __init__(self, number):
                self.number = number

            def step(self, completion):
                if completion.strip() == str(self.number):
                    return Reply(terminated=True)
                return Reply(messages=[user("No. Guess again.")])

            def close(self):
                pass

    One with an attribute `waits = True` spends its time waiting (for a browser, for another process): it is stepped in a thread,
    side by side with others. A method `gold_turn() -> str | None` says what would be right now, for demonstrations of several
    turns. A world that breaks raises `mmrl.EnvironmentFailed`, and its episode is left out."""

    def step(self, completion: str) -> Reply:
        """What follows the turn whose text this is."""
        ...

    def close(self) -> None:
        """The episode is over, by itself or cut off."""
        ...


@runtime_checkable
class Simulator(Protocol):
    """N environments in lock-step, tensors on one device. Its spec's target is called as `target(num_envs=, device=, **options)`.

    It never resets itself, and draws from the seeds alone, never from a global generator: an environment that is reset with a
    seed and gets the same actions does the same, whatever N is, wherever it stands and whatever the others do.
    """

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """Starts these environments, or all, each from its seed (int64), and gives their n observations.

        variant: one of the spec's, a change of the world that a policy should bear; None is the world as it is trained on.
        """
        ...

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """One step of the active environments (bool); the others stay as they are, bit for bit. actions_NA: float32.

        Raises UserError for actions of a wrong shape or active ones that are NaN.
        """
        ...

    def snapshot(self, env_ids_n: torch.Tensor) -> Any:
        """The whole state of these environments, apart from later steps."""
        ...

    def restore(self, env_ids_n: torch.Tensor, state: Any) -> Observation:
        """Puts n environments into the n states of a snapshot, of this or of another instance, and gives their observations."""
        ...

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """Pictures for people, uint8 [n, H, W, 3]."""
        ...

    def close(self) -> None:
        """Lets go of everything; may be called twice."""
        ...


@runtime_checkable
class Expert(Protocol):
    """A simulator with the capability `expert`: it can do its tasks itself, for demonstrations."""

    def expert(self) -> torch.Tensor:
        """What it would do in each environment now: float32 [N, A]."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """Where curves go besides the run folder. It is made once a run, and imports what is heavy in `start`. What it raises is
    told and doesn't end the run."""

    def start(self, *, name: str, folder: Path, config: Mapping[str, Any], project: str, step: int) -> None:
        """The run begins or goes on. name: the run's. folder: the run folder, for files and ids that a resume needs.
        config: the resolved run file as plain data. project: what to file the run under. step: 0 at the beginning, or the step
        after which a resumed run goes on: whatever was logged beyond it comes again."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Figures after a step, all finite. A step may come more than once, with other names."""

    def finish(self, status: str) -> None:
        """The run ended: `finished`, `stopped` (by the person) or `failed`."""


class RunInfo(Protocol):
    """What the run hooks are told of a run."""

    path: Path
    """The run folder; `docs/run-folder.md` describes its files."""

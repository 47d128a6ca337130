"""Episodes of a simulator as a task: the splits of starts, and the reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mmrl import Prompt, Task, UserError
from mmrl.api.simulators.types import Observation, Simulation
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type

if TYPE_CHECKING:
    import torch

APART = 100_000_000
"""Distance between the seeds of different splits."""
SPLITS = ("demo", "train", "test")
CALLS = 64
"""Number of prompts for each demonstration, one for each call, modulo its length."""
RENAMED = {"difference": "potential_based", "until_success": "terminate_on_success", "deadline": "time_limit_terminates"}
"""Options of version 0.1 -> their names."""


def _sight(classifier: Mapping[str, Any] | None) -> Callable[[Observation], torch.Tensor] | None:
    if classifier is None:
        return None
    from mmrl_robotics.classifier import Sight  # imports torch

    return Sight(classifier)


class Episodes(Task):
    """Episodes whose seeds fix their starts.

    The split `demo` has steps of the expert's episodes, for imitation: one prompt for each of `demos` episodes and each of its
    steps. `train` and `test` have starts; no seed is in two splits.
    """

    splits: ClassVar[tuple[str, ...]] = SPLITS

    def __init__(
        self,
        *,
        simulator: str,
        variant: str | None = None,
        demos: int = 1000,
        starts: int = 100_000,
        held_out: int = 2000,
        stages: Mapping[str, float] | None = None,
        reward: Literal["stages", "own", "none"] = "stages",
        potential_based: bool | None = None,
        terminate_on_success: bool = True,
        time_limit_terminates: bool = False,
        max_steps: int | None = None,
        classifier: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """simulator: its id. variant: a variant of the simulator, in every split but `demo`. demos, starts, held_out: episodes of
        the splits. stages, reward, potential_based (by default true with reward = "stages"), terminate_on_success,
        time_limit_terminates, max_steps: see `mmrl.api.simulators.types.Simulation`. classifier: options of the verifier
        robotics/classifier, by which an episode ends with the first picture of success; none by default. options: the simulator's
        own."""
        for old in RENAMED.keys() & options.keys():
            raise UserError(f"the option {old!r} is called {RENAMED[old]!r} since version 0.2: rename it")
        for name, value in (("demos", demos), ("starts", starts), ("held_out", held_out)):
            check_integer(name, value, 1, APART)
        if max_steps is not None:
            check_integer("max_steps", max_steps, 1, 1_000_000)
        check_type("potential_based", True if potential_based is None else potential_based, bool)
        check_type("terminate_on_success", terminate_on_success, bool)
        check_type("time_limit_terminates", time_limit_terminates, bool)
        check_choice("reward", reward, ("stages", "own", "none"))
        if potential_based is not None and reward != "stages":
            said = f"potential_based = {str(potential_based).lower()}"
            raise UserError(f'{said} is for stages, and reward = "{reward}" has none: leave one of them out')
        for name, worth in (stages or {}).items():
            if isinstance(worth, bool) or not isinstance(worth, int | float) or not abs(worth) < 1e6:
                raise UserError(f"stages.{name} = {worth!r} must be a number: the reward of that stage")
        self.variant = variant
        self.sizes = {"demo": demos * CALLS, "train": starts, "test": held_out}
        self.simulation = Simulation(
            simulator=simulator,
            options=options,
            max_steps=max_steps,
            reward=reward,
            potential_based=potential_based is not False,
            terminate_on_success=terminate_on_success,
            time_limit_terminates=time_limit_terminates,
            sees_success=_sight(classifier),
            **({"stages": dict(stages)} if stages else {}),
        )

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        check_split(split, self.splits)
        return LazyPrompts(range(self.sizes[split]), lambda number: self._prompt(split, number))

    def _prompt(self, split: str, number: int) -> Prompt:
        first = APART * SPLITS.index(split)
        if split == "demo":
            episode, call = divmod(number, CALLS)
            return Prompt(id=f"demo-{episode}-{call}", messages=[], seed=first + episode, meta={"call": call})
        meta = {} if self.variant is None else {"variant": self.variant}
        return Prompt(id=f"{split}-{number}", messages=[], seed=first + number, meta=meta)

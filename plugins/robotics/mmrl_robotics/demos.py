"""Demonstrations of a data set as a task, optionally with a simulator for evaluation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

from mmrl import Prompt, UserError
from mmrl.api.simulators.types import Demonstration
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl_robotics.lerobot import DataSet
from mmrl_robotics.task import Episodes


class Demos(Episodes):
    """Demonstrations from a folder in LeRobot's format, version 2 or 3.

    The split `demo` has a prompt for each step of each episode. With a simulator, `train` and `test` have its starts, as in
    robotics/episodes; without one there is only `demo`, for imitation.
    """

    def __init__(
        self,
        *,
        folder: str,
        cameras: Mapping[str, str] | None = None,
        state: str = "observation.state",
        action: str = "action",
        units: Literal["simulator", "physical"] = "simulator",
        cache_mb: int = 1024,
        simulator: str = "",
        **options: Any,
    ) -> None:
        """folder: of the data set. cameras: name of a simulator's camera = key of the data set's, such as
        { front = "observation.images.top" }; by default all, each under the last part of its key. state: its key, empty for
        none. action: its key. units: `simulator` if actions are in [-1, 1], `physical` if they are in metres, radians and so on,
        for a policy with statistics. cache_mb: size of the cache. simulator: its id; empty for none. options: those of
        robotics/episodes, and the simulator's own."""
        for name, value in (("folder", folder), ("state", state), ("action", action), ("simulator", simulator)):
            check_type(name, value, str)
        if cameras is not None:
            check_type("cameras", cameras, Mapping, '{ front = "observation.images.top" }')
        check_choice("units", units, ("simulator", "physical"))
        check_integer("cache_mb", cache_mb, 0, 2**30)
        if options and not simulator:
            raise UserError(f"{next(iter(options))} needs a simulator: set the option simulator, or leave it out")
        super().__init__(simulator=simulator, **options)
        if not simulator:
            self.splits = ("demo",)  # type: ignore[misc]  # the option decides which there are
        self.physical = units == "physical"
        self.data = DataSet(folder, state=state, action=action, cameras=cameras, cache_mb=cache_mb)
        if not self.data.cameras and not state:
            raise UserError("observations would be empty: set a camera or a state")
        self._ends = list(accumulate(episode.length for episode in self.data.episodes))

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        check_split(split, self.splits)
        return LazyPrompts(range(self._ends[-1]), self._moment) if split == "demo" else super().prompts(split, seed)

    def _moment(self, number: int) -> Prompt:
        place = bisect_right(self._ends, number)
        episode = self.data.episodes[place]
        step = number - (self._ends[place] - episode.length)
        meta = {"episode": place, "step": step}
        return Prompt(id=f"demo-{episode.index}-{step}", messages=[], seed=episode.index, meta=meta)

    def demonstration(self, prompt: Prompt) -> Demonstration | None:
        if "step" not in prompt.meta:
            return None
        episode, step = self.data.episodes[prompt.meta["episode"]], prompt.meta["step"]
        steps = self.data.steps(episode)
        cameras = self.data.cameras.items()
        return Demonstration(
            instruction=steps.instructions_T[step],
            images={name: self.data.picture(episode, step, key)[None] for name, key in cameras},
            state=None if steps.state_TS is None else steps.state_TS[step : step + 1],
            actions_MA=steps.actions_TA[step:],
            physical_units=self.physical,
        )

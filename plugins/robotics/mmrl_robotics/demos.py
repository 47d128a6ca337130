"""Demonstrations of a data set as a task, optionally with a simulator for evaluation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import torch

from mmrl import Prompt, UserError
from mmrl.api.errors import display_path
from mmrl.api.simulators.types import Demonstration
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl_robotics.lerobot import DataSet, Episode
from mmrl_robotics.task import Episodes

SUCCESS = "success"
"""The option `paid` that pays the last action of each episode."""


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
        paid: str = "",
        terminated: str = "",
        cache_mb: int = 1024,
        simulator: str = "",
        simulator_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """folder: of the data set. cameras: name of a simulator's camera = key of the data set's, such as
        { front = "observation.images.top" }; by default all, each under the last part of its key. state: its key, empty for
        none. action: its key. units: `simulator` if actions are in [-1, 1], `physical` if they are in metres, radians and so on,
        for a policy with statistics. paid: for stages that learn values (`offline = "recorded"`): the key of what each action
        was paid, such as next.reward, or `success`: 1 for the last action of each episode, which then terminates. terminated: key
        of a bool whose value in an episode's last step says that nothing would have followed, such as next.done; empty: with
        `success` nothing, else they were cut off. cache_mb: size of the cache. simulator: its id; empty for none.
        simulator_options: those that are called as one of this task is, such as its `cameras`. options: those of
        robotics/episodes, and the simulator's other ones."""
        texts = {"folder": folder, "state": state, "action": action, "paid": paid, "terminated": terminated}
        for name, value in {**texts, "simulator": simulator}.items():
            check_type(name, value, str)
        if terminated and paid in ("", SUCCESS):
            raise UserError(f"terminated = {terminated!r} goes with rewards of the data set: set paid to their key, or drop it")
        if cameras is not None:
            check_type("cameras", cameras, Mapping, '{ front = "observation.images.top" }')
        check_choice("units", units, ("simulator", "physical"))
        own = simulator_options or {}
        check_type("simulator_options", own, Mapping, '{ cameras = ["top"] }')
        if twice := own.keys() & options.keys():
            raise UserError(f"simulator_options: {min(twice)} is also given beside it: leave one out")
        options = {**options, **own}
        check_integer("cache_mb", cache_mb, 0, 2**30)
        if options and not simulator:
            raise UserError(f"{next(iter(options))} needs a simulator: set the option simulator, or leave it out")
        super().__init__(simulator=simulator, **options)
        if not simulator:
            self.splits = ("demo",)  # type: ignore[misc]  # the option decides which there are
        self.physical = units == "physical"
        self.paid, self.terminated = paid, terminated
        more = {name: key for name, key in (("paid", paid), ("terminated", terminated)) if key and key != SUCCESS}
        self.data = DataSet(folder, state=state, action=action, cameras=cameras, cache_mb=cache_mb, more=more)
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
        told = steps.instructions_T
        end = next((t for t in range(step, episode.length) if told[t] != told[step]), episode.length)  # a chunk ends there, too
        return Demonstration(
            instruction=told[step],
            images={name: self.data.picture(episode, step, key)[None] for name, key in cameras},
            state=None if steps.state_TS is None else steps.state_TS[step : step + 1],
            actions_MA=steps.actions_TA[step:end],
            physical_units=self.physical,
        )

    def recorded_episodes(self, most: int) -> Iterator[Demonstration]:
        if not self.paid:
            raise UserError(
                f"option paid: what each action of {display_path(self.data.folder)} was paid must be said: set "
                f'paid to its key, such as next.reward, or to "{SUCCESS}"'
            )
        if self.physical:
            raise UserError(
                'option units: a memory holds actions in [-1, 1], as a simulator takes them: use "simulator" if the data set '
                "has these, or write it again with its actions scaled"
            )
        return map(self._whole, self.data.episodes[:most])

    def _whole(self, episode: Episode) -> Demonstration:
        steps, cameras = self.data.steps(episode), self.data.cameras.items()
        if self.paid == SUCCESS:
            rewards_T, terminated = torch.zeros(episode.length), True
            rewards_T[-1] = 1.0
        else:
            rewards_T = steps.more[self.paid]
            terminated = bool(self.terminated) and bool(steps.more[self.terminated][-1])
        return Demonstration(
            instruction=steps.instructions_T[0],
            instructions=tuple(steps.instructions_T) if len(set(steps.instructions_T)) > 1 else (),
            images={
                name: torch.stack([self.data.picture(episode, t, key) for t in range(episode.length)]) for name, key in cameras
            },
            state=steps.state_TS,
            actions_MA=steps.actions_TA,
            rewards_T=rewards_T,
            terminated=terminated,
        )

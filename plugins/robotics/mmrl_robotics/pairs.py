"""Progress between two moments of an expert's episode: training data of a progress critic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from mmrl import Prompt, Task, UserError, user_message
from mmrl.api.services import expert_episodes
from mmrl.api.tasks.option_checks import LazyPrompts, check_integer, check_split, check_type
from mmrl_robotics.looking import PAIR

SOURCES = {"train": "demo", "test": "test"}
"""Split -> split of the episodes' task from which it is played."""


class Episode(NamedTuple):
    """Data of a successful episode."""

    instruction: str
    images: Any
    """uint8 NumPy [T + 1, H, W, 3]: before each of its T actions, and at the end."""


class ProgressPairs(Task):
    """Two moments in random order. The answer is the difference between the shares of actions that the expert had executed, in
    percent, so the answers of consecutive moments add up (time as a measure of progress: Zhai et al., A
    Vision-Language-Action-Critic Model for Robotic Real-World Reinforcement Learning).

    The expert plays on first use of the prompts; episodes in which it failed are left out.
    """

    def __init__(
        self,
        *,
        task: str = "robotics/pick",
        episodes: int = 200,
        held_out: int = 50,
        pairs: int = 16,
        camera: str = "",
        **options: Any,
    ) -> None:
        """task: id of the task whose episodes are used. episodes, held_out: number of episodes for train and test. pairs: number
        for each episode. camera: its name; the first when empty. options: those of that task."""
        for name, value in (("episodes", episodes), ("held_out", held_out), ("pairs", pairs)):
            check_integer(name, value, 1, 100_000)
        for name, text in (("task", task), ("camera", camera)):
            check_type(name, text, str)
        self.task, self.options, self.camera, self.pairs = task, options, camera, pairs
        self.counts = {"train": episodes, "test": held_out}
        self._episodes: dict[str, list[Episode]] = {}

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        episodes = self._played(check_split(split, self.splits))
        return LazyPrompts(range(len(episodes) * self.pairs), lambda number: self._prompt(split, episodes, number))

    def _prompt(self, split: str, episodes: list[Episode], number: int) -> Prompt:
        from PIL import Image

        which, pair = divmod(number, self.pairs)
        episode = episodes[which]
        moments = len(episode.images)
        first, second = random.Random(f"{split} {which} {pair}").sample(range(moments), 2)
        shown = [Image.fromarray(episode.images[moment]) for moment in (first, second)]
        return Prompt(
            id=f"{split}-{which}-{pair}",
            messages=[user_message(PAIR.format(instruction=episode.instruction), *shown)],
            answer=round(100 * (second - first) / (moments - 1)),
        )

    def _played(self, split: str) -> list[Episode]:
        if split not in self._episodes:
            played = expert_episodes(self.task, self.options, self.counts[split], split=SOURCES[split])
            try:
                found = [self._kept(data) for data, outcome in played.trajectories() if outcome["success"]]
            finally:
                played.close()
            if not found:
                raise UserError(
                    f"the expert solved none of {self.counts[split]} episodes of {self.task!r}: play more, or another task"
                )
            self._episodes[split] = found
        return self._episodes[split]

    def _kept(self, data: Any) -> Episode:
        if not data.images:
            raise UserError(f"episodes of task {self.task!r} have no pictures: choose one whose simulator renders")
        camera = self.camera or next(iter(data.images))
        if camera not in data.images:
            raise UserError(f"camera = {camera!r} is not a camera of the simulator: choose one of {', '.join(data.images)}")
        return Episode(data.instruction.rstrip(". "), data.images[camera].cpu().numpy())
